"""Training: the step, its gradients, its metrics and its checkpoints."""
