"""What applications call to add work."""
