"""Steps, gradients, checkpoints and what is logged."""
