"""The search for the largest batch."""
