"""Names what a deterministic answer depends on."""

import hashlib
from collections.abc import Sequence

from transformers import PreTrainedModel


def fingerprint(model: PreTrainedModel, parts: Sequence[str]) -> str:
    """`fp_` and ten hex digits over the weights and `parts` (dtypes, backend, version).

    Of the weights: names, shapes, types and the first 16 numbers of each. That tells two models or two fine-tunes
    apart without reading gigabytes at every start.
    """
    digest = hashlib.sha256("\0".join(parts).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.flatten()[:16].float().cpu().numpy().tobytes())
    return f"fp_{digest.hexdigest()[:10]}"
