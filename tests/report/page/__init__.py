"""The page, and how it behaves in a browser."""
