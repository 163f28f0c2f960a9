"""The checks of `efprof doctor`."""
