"""Tests of the check and the program `collectives`."""
