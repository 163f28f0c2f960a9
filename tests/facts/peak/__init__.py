"""What is alive at the highest instant."""
