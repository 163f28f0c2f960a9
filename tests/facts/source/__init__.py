"""The lines of the program."""
