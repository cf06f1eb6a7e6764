"""Tests of hpcverify.summary."""
