"""The run folder on disk: its layout, its schema version, one reader per file."""
