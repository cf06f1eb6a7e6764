"""Readers of the hardware: what the machine says of itself."""
