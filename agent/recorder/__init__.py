"""Flight recorder: keeps the last minutes at full rate; stores them around findings and sends them on request."""
