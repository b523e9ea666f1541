"""Quality of judging: `make evaluate` measures it and writes docs/quality.md.

Only this package and the tests import both the world (`simulator`) and its judge (`aggregator`).
"""
