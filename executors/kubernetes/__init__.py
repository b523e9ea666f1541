"""Kubernetes: its API server, taints and evictions, the scheduler extender, Kueue, device taints, node health."""
