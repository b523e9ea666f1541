"""The latest readings of all hosts, in arrays: the input of scoring."""
