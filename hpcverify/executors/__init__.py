"""Ways to run a suite on a node."""
