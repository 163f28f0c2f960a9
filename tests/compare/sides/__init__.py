"""The two sides of a live comparison: their trees, and the runs in them."""
