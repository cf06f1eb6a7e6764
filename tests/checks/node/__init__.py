"""Tests of what checks read of the node."""
