"""What the page shows of every run."""
