"""The targets of `make fuzz`: for each parser of outside text or bytes, a function that damages a valid input.

A target takes a random source and returns ACCEPTED when something was read, or REFUSED when nothing
was read or the documented error came. It raises when the code under test did anything else.
"""
