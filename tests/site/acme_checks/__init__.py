"""A site's own checks, as CONTRIBUTING shows; some of them misbehave on purpose."""
