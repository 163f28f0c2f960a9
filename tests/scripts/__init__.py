"""Small training scripts that are recorded as a user would."""
