"""Tests of hpcverify.records."""
