"""Tests of where limits come from."""
