"""The HTML page and its templates."""
