"""Profiler windows, the CUDA allocator's history, and what opens either."""
