"""A fabric of its own for a Slurm of several nodes: switches, links, and their faults."""
