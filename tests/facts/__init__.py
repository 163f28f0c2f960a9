"""What is derived from the artifacts."""
