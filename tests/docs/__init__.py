"""The book in docs/ and the pages beside it: what the code says in them, and that it holds."""
