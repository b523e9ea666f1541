"""XID and SXid codes of NVIDIA's driver: meaning, decoding and incidents."""
