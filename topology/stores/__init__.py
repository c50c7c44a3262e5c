"""Declarations of stores and windows: Materialized, Stores, TimeWindows and the others."""
