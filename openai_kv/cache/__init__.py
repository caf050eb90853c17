"""The KV cache as bookkeeping: blocks, radix tree, exact index, eviction. No torch, no asyncio."""
