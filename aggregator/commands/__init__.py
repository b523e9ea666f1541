"""Commands of the aggregator: one file per command."""

import os

# Before gRPC is imported: else it writes a line to stderr for each handshake that fails, and anyone who reaches the port
# fills the log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
