"""Tests of hpcverify.plan."""
