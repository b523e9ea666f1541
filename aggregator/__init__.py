"""The service: durable store, fleet state, judgement, API, SQL."""
