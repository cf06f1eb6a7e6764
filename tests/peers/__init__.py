"""Tests of the fleet as a judge."""
