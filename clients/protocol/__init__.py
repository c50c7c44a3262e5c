"""Requests and responses, as bytes and as values."""
