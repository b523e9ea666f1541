"""HTCondor: its commands, and the script that sets attributes of a machine."""
