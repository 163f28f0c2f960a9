"""Values that are not finite."""
