"""Two Reports become one Comparison."""
