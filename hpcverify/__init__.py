"""Proactive node health verification for GPU clusters."""
