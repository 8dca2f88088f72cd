"""The benchmarks of docs/benchmarks.md, run by scripts/bench. Standard library only."""
