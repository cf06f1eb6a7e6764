"""Tests of the check cpu_units."""
