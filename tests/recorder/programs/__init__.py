"""Training programs that several tests record."""
