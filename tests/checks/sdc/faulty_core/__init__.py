"""A sitecustomize for processes that tests start."""
