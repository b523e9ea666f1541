"""Who may do what: roles, certificates, tokens, and limits per peer."""
