"""What NHC is told."""
