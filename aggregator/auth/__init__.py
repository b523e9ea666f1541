"""Who may call what: principals, tokens, certificates, rate limits."""
