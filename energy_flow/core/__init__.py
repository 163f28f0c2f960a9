"""The model: lattice, neuron, carrier, the flows and what moves them."""
