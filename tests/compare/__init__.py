"""Pairing two sets of reports, and what is said of each metric."""
