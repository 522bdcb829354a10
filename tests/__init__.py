"""Tests: `unit` is fast and starts nothing, `stack` runs real servers, `benchmarks` measures."""
