"""Steps with the recorder and without it, by turns: what recording costs."""
