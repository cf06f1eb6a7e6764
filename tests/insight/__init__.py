"""Tests of what the nights say of the fleet."""
