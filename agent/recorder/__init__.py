"""Flight recorder: stores the last minutes of samples around findings; sends them on request."""
