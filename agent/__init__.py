"""The daemon on every GPU host: samples, spools, streams."""
