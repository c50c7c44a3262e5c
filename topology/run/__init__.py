"""From the graph to what runs: compiled and fused loops."""
