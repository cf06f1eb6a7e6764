"""Tests of exact products and copies."""
