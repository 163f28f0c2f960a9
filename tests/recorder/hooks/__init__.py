"""What is put into torch and taken out again."""
