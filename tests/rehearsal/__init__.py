"""hpcverify on GPUs that are not there: see README.md."""
