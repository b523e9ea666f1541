"""From a message to the fleet and the store: who speaks, whether it is well-formed, when it was."""
