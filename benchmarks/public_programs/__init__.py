"""Public training programs that run bare and recorded by turns."""
