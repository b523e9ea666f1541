"""One module per group of rules: which readings are symptoms, of what state."""
