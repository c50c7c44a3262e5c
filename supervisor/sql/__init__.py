"""SQL over state stores: DuckDB in a process without files, network and secrets. Needs penstock-streams[sql]."""
