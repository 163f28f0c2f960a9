"""Truths derived from artifacts, pure, each computed once per run.

A fact is a class with `compute(run)`; audits ask for it by `run.get(Fact)`. The folders import each other in the order
that docs/architecture.md has.
"""
