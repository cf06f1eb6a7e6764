"""The room that calls Slurm, on a real one: see tests/slurm_lab."""
