"""Tests of collectives between nodes whose links can be broken."""
