"""What a CPU recording tells of a GPU's memory."""
