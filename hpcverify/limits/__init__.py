"""Where a limit comes from: part specs, suites and the site, siblings, the past."""
