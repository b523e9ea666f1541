"""What agent and aggregator both stand on. Imports nothing, so that each pays only for what it uses."""
