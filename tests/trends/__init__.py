"""Tests of the past of parts."""
