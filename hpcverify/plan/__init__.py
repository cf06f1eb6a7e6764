"""What is to be done: checks, suites and a site's configuration, checked before a run."""
