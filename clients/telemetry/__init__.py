"""Pushes the metrics of a client to a broker that subscribes to them (KIP-714, KIP-1076)."""
