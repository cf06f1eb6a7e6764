"""Tests of the events."""
