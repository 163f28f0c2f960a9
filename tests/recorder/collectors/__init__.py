"""The collectors, one file per artifact."""
