"""A report as HTML, text, JSON and Markdown."""
