"""What codes mean."""
