"""Compiled topologies: from the graph to the nodes that process records."""
