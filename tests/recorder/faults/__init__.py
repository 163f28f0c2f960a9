"""Programs that are killed, end early or fill the disk."""
