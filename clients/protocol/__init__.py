"""Requests and answers as bytes and values."""
