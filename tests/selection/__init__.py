"""Whom to verify next, and with which suite."""
