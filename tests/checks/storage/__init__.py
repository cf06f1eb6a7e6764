"""Tests of the storage check."""
