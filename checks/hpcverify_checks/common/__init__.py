"""What two or more checks share."""
