"""Tests of the life of a node."""
