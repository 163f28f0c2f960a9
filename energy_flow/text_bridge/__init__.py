"""The text bridge: text to surface and surface to text, trained along with the flows."""
