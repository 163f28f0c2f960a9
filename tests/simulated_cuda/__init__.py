"""A CUDA device in Python, and the recorder on it."""
