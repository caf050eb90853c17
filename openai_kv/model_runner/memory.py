"""How much memory the KV pool takes when nobody says."""

import torch

GIB = 2**30
SHARE_OF_FREE = 0.9


def default_kv_cache_bytes(device: torch.device) -> int:
    """1 GiB on the CPU, which shares its memory with everything else; 0.9 of what is free on an accelerator."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(SHARE_OF_FREE * free)
    if device.type == "mps":
        return int(SHARE_OF_FREE * (torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()))
    return GIB
