"""Tests of events and of the formats that others read."""
