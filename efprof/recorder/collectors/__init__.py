"""What is recorded, one file per artifact."""
