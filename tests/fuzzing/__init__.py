"""What `make fuzz` runs: for each parser of outside text or bytes, a function that damages a valid input.

A target takes a random source and returns ACCEPTED when something was read, REFUSED when nothing was, or the
documented error came. It raises when the code under test did anything else.
"""
