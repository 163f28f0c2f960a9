"""Edits of the user's code."""
