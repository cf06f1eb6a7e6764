"""Tests of the qualification room."""
