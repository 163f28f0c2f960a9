"""The works of `make bench-trace`: made files, what is done with each in a process of its own, and the table."""
