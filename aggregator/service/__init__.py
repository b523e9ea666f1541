"""One file per gRPC service, and the table of errors."""
