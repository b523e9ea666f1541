"""The service: durable store, fleet state, scoring, API, SQL."""
