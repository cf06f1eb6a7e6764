"""What to say of a run: counts, order, next steps, key figures, for every output."""
