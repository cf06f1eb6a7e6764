"""The packages, installed for real on a fresh Debian: `make test-packages`."""
