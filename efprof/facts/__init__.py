"""Truths derived from artifacts, pure, each computed once per run."""
