"""Attention over the block pool: one protocol, one small file per backend."""
