"""Tests of the check thermal."""
