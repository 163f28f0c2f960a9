"""What the data loader costs: waits for batches, and the memory of its workers."""
