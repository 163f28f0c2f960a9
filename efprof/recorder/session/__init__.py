"""One recording process: it starts and stops the collectors, keeps their errors from the training, and writes."""
