"""Quality of judging: `make evaluate` measures it and writes docs/quality.md.

The one place beside the tests that knows both the world (`simulator`) and who judges it (`aggregator`).
"""
