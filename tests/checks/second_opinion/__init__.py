"""Tests of the check second_opinion."""
