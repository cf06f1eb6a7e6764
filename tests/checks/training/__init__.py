"""Tests of the check training."""
