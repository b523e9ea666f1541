"""Commands of the aggregator: one file per command."""

import os

# Set before gRPC is imported: otherwise it logs a line for each failed handshake, and anybody that
# can reach the port fills the log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
