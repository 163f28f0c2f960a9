"""Within a second run of a training: where its first NaN or Inf is born. No recording uses it."""
