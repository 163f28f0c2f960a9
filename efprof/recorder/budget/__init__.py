"""What recording costs by its own clock, and which steps are recorded in full."""
