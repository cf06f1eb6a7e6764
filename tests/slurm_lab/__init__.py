"""A real Slurm on one machine: `lab.a_cluster` brings it up and down."""
