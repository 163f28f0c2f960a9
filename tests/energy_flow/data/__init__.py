"""Pairs of texts, the teacher, the dataset and its loader."""
