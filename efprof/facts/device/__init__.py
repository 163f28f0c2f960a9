"""A CUDA device's memory: its history replayed, who has it, and what would make room.

`device_memory` has the histories that a run's snapshots hold, replayed by the model in `facts/allocator/`.
"""
