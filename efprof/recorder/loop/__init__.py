"""Where a step and its stages begin and end, and which thread trains."""
