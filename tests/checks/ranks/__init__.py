"""Tests of ranks that meet."""
