"""How often `efprof compare` calls a side slower that is not, and finds one that is."""
