"""Replay request traces through the cache the server runs: what would a policy have hit? No torch, no asyncio."""
