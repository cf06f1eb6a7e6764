"""Tests of the checks: each finds its fault, and nothing on a healthy node."""
