"""Which node, link or switch spoils a collective: a search by tests of groups of nodes."""
