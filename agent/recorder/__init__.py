"""The flight recorder: the last minutes at full rate, stored around findings and sent on request."""
