"""The fleet: which nodes to verify next, and what to do with the results."""
