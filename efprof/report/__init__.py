"""Renderings of a Report: HTML, terminal, JSON, Markdown.

`verdict` says what a person reads first, `wording` the phrases of all forms; `charts/` makes the pictures.
"""
