"""Checks of a fleet that is a test."""
