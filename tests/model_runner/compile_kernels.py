"""Compiles the Triton kernels for compute capability 9.0, on any machine; prints their names."""

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from openai_kv.model_runner.attention import triton_kernels as kernels

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    **dict.fromkeys(("output", "query", "key", "value", "key_blocks", "value_blocks"), "*bf16"),
    **dict.fromkeys(("sums", "maxima", "parts", "mass", "sinks"), "*fp32"),
    **dict.fromkeys(("tables", "starts", "contexts"), "*i32"),
    **dict.fromkeys(("scale", "softcap"), "fp32"),
    "slots": "*i64",
}
CONSTANTS: dict[str, Any] = {
    "GROUP": 3, "KV_HEADS": 3, "BLOCK_SIZE": 7, "KEY_DIM": 80, "VALUE_DIM": 80, "KEY_PAD": 128, "VALUE_PAD": 128,
    "HEADS_PAD": 4, "BLOCK_M": 64, "BLOCK_Q": 21, "BLOCK_N": 64, "SPLITS": 2, "DOT": tl.bfloat16, "WINDOW": 100,
    "HAS_SOFTCAP": True, "HAS_SINKS": True,
}  # fmt: skip


def compiled(kernel: Any) -> Any:
    signature = {name: "constexpr" if name in CONSTANTS else POINTERS.get(name, "i32") for name in kernel.arg_names}
    constants = {name: CONSTANTS[name] for name in kernel.arg_names if name in CONSTANTS}
    return triton.compile(ASTSource(kernel, signature, constexprs=constants), target=HOPPER)


def main() -> None:
    for kernel in (kernels.attend, kernels.merge, kernels.weigh, kernels.write):
        assert compiled(kernel).asm["cubin"]
        print(kernel.__name__)


if __name__ == "__main__":
    main()
