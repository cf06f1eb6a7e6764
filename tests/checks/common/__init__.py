"""Tests of what checks share."""
