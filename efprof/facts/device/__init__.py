"""A CUDA device's memory: its history replayed, who has it, and what would make room."""
