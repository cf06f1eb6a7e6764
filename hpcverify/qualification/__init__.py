"""Qualify hpcverify on hardware that is new to it: the steps, and what their runs say."""
