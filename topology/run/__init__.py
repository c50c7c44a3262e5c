"""Compiled topologies: the closures and fused loops that process records."""
