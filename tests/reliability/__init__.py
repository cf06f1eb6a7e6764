"""Tests of what outages say of a fleet."""
