"""Authentication and authorization: principals, tokens, certificates, rate limits."""
