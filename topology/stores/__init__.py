"""How results are kept: Materialized, Stores, windows."""
