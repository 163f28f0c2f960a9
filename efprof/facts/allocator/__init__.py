"""CUDA's caching allocator as a model: its rules, the replay of a recording, and what other settings would do.

`caching_allocator` has the rules, `history` what was recorded, `replay` runs the one over the other, and `what_if` does
so under other settings. Nothing here knows of runs.
"""
