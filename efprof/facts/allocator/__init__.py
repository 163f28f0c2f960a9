"""CUDA's caching allocator as a model: its rules, the replay of a recording, and what other settings would do."""
