"""How long steps took, where their time went, and whether later ones take longer."""
