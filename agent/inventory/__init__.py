"""What changes rarely, read by a short-lived child that may import what the daemon must not."""
