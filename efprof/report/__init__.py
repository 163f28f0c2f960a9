"""Renderings of a Report: HTML, terminal, JSON, Markdown."""
