"""XID and SXid codes of NVIDIA's driver: their meaning, decoding and incidents."""
