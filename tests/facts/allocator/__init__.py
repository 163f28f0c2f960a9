"""The model of the caching allocator, and replays."""
