"""A site's own checks, as docs/how-to/write-a-check.md shows; some of them misbehave on purpose."""
