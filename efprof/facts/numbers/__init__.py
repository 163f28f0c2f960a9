"""The first loss or gradient that was not finite, its operation, and updates that a scaler skipped."""
