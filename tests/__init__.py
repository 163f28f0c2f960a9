"""The tests: a tree like that of the two packages, and what several of them share."""
