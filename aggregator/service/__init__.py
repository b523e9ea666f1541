"""gRPC services, one file each, and the table of errors."""
