"""The processor graph: names, optimization, sub-topologies, descriptions, comparison of versions."""
