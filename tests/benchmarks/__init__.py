"""What the benchmarks compute, without their minutes of measuring."""
