"""Typed changes for code and settings, computed from the user's own source."""
