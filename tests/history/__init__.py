"""Tests of hpcverify.history."""
