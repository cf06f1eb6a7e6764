"""A run in words, for every output: counts, order, next steps, key figures."""
