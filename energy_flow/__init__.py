"""Energy flow: a trainer that carries one sentence embedding into another through a 3-D lattice."""
