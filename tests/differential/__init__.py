"""Runs golden cases on both engines: compares Spark's results with the local engine's, as the capability report
promises.
"""
