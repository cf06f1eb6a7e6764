"""One run on one node: workers measure, the engine judges."""
