"""Device memory: history, maps, failures, headroom."""
