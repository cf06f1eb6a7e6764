"""What a site may add."""
