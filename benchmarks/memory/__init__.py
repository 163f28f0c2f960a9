"""Whether what efprof says of GPU memory is true, and how long it takes."""
