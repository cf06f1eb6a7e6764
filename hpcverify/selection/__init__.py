"""Whom to verify next, and with what: the chance that a node fails, and what a suite sees."""
