"""The state machine of nodes: what becomes of a node with each result, and who holds it."""
