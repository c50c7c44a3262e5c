"""Runs golden cases on both engines: what the capability report promises of Spark is held against the local engine."""
