"""Element types by name."""

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
