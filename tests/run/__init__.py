"""Tests of hpcverify.run."""
