"""A fleet's load, made by processes of their own whose CPU is told apart: `python -m bench.load --help`."""
