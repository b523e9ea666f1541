"""Who may do what: roles, certificates, tokens, limits for each caller. The threat model is docs/security.md."""
