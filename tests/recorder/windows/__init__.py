"""Profiler windows, allocator history and triggers."""
