"""Tests of the check sdc."""
