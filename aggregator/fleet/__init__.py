"""The latest of everything, in arrays: what judging looks at."""
