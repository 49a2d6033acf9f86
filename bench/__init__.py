"""Benchmarks. `python -m bench` prints pgflow's own figures; `--json FILE` writes them."""
