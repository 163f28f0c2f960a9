"""How a run ended, its limits and its settings."""
