"""Tests of what only a qualification measures."""
