"""Tests of the fleet room."""
