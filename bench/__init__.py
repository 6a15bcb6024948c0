"""Benchmarks: ratios of two sides in one run, medians of alternating rounds. Never a test; see docs/benchmarks.md."""
