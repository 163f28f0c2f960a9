"""The run: its folder, its limits, how memory ran out, the user's settings. Imports no other fact."""
