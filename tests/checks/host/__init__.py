"""The check `host`."""
