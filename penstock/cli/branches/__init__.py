"""Copies of a running application: what `penstock branch` does."""
