"""Operators' SQL over gRPC, in a process of its own that can be killed."""
