"""Text to surface and back."""
