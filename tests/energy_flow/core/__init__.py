"""The lattice, the flows and what moves them."""
