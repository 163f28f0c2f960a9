"""The first loss or gradient that was not finite, and the operation it came from."""
