"""Ranks that meet, wait for each other and compute together."""
