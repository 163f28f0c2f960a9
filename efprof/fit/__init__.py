"""Which batch fits a budget of memory: measured at small sizes, predicted, and proved by a run."""
