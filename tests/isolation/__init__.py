"""Searches of simulated clusters, and what they lead to."""
