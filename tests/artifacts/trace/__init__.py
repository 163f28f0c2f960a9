"""Tests of the trace engine: any Kineto file to columns."""
