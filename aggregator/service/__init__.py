"""gRPC services, a file each, and the table of errors."""
