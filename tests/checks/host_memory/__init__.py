"""Tests of the check of the host's memory."""
