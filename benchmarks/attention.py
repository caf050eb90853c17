"""One layer of attention, backend `cpu` against `sdpa`: python benchmarks/attention.py [--heads 9 --kv-heads 3 ...]

Prints milliseconds of both and the median ratio sdpa / cpu (above 1: cpu is faster), measured in turns, so that
whatever else the machine does hits both. With `--threads 1` it counts CPU time, which a busy machine does not stretch.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from itertools import accumulate

import torch

from openai_kv.config import default_home
from openai_kv.model_runner.attention.backend import AttentionBackend, AttentionOptions, LayerCache
from openai_kv.model_runner.attention.cpu import load_cpu_backend
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.attention.sdpa import SdpaBackend


@dataclass(frozen=True, slots=True)
class Shape:
    heads: int
    kv_heads: int
    dim: int
    block_size: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Workload:
    """Per request: rows of this step, and context with them."""

    name: str
    queries: tuple[int, ...]
    contexts: tuple[int, ...]


def workloads() -> list[Workload]:
    decode = [
        Workload(f"decode {batch} x {context}", (1,) * batch, (context,) * batch)
        for batch in (1, 8, 32)
        for context in (128, 512, 1024, 4096)
    ]
    prefill = [
        Workload("prefill 1445", (1445,), (1445,)),
        Workload("prefill 512 after 933", (512,), (1445,)),
        Workload("prefill 64 after 1381", (64,), (1445,)),
        Workload("prefill 4 after 1441", (4,), (1445,)),
        Workload("prefill 8 x 100", (100,) * 8, (100,) * 8),
        Workload("prefill 256 + decode 8 x 512", (256, *(1,) * 8), (256, *(512,) * 8)),
    ]
    return decode + prefill


class Layer:
    """A pool that just holds the workload, its blocks shuffled, and one step's rows."""

    def __init__(self, shape: Shape, workload: Workload) -> None:
        needed = [-(-context // shape.block_size) for context in workload.contexts]
        pool = (sum(needed), shape.kv_heads, shape.block_size, shape.dim)
        self.cache = LayerCache(torch.randn(pool, dtype=shape.dtype), torch.randn(pool, dtype=shape.dtype))
        self.options = AttentionOptions(shape.dim**-0.5)
        self.metadata = _metadata(shape, workload, needed)
        rows = sum(workload.queries)
        self.query = torch.randn(shape.heads, rows, shape.dim, dtype=shape.dtype).transpose(0, 1)
        self.key, self.value = (
            torch.randn(shape.kv_heads, rows, shape.dim, dtype=shape.dtype).transpose(0, 1) for _ in range(2)
        )

    def run(self, backend: AttentionBackend, repeats: int) -> float:
        """Milliseconds of one call."""
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        for _ in range(repeats):
            backend.forward(self.query, self.key, self.value, self.cache, self.metadata, self.options, None)
        return (clock() - start) * 1e3 / repeats


def _metadata(shape: Shape, workload: Workload, needed: list[int]) -> AttentionMetadata:
    tables = torch.randperm(sum(needed)).split(needed)
    slots = []
    for table, query, context in zip(tables, workload.queries, workload.contexts, strict=True):
        positions = torch.arange(context - query, context)
        slots.append(table[positions // shape.block_size] * shape.block_size + positions % shape.block_size)
    return AttentionMetadata(
        slot_mapping=torch.cat(slots),
        block_tables=torch.nn.utils.rnn.pad_sequence(tables, batch_first=True).int(),
        query_starts=torch.tensor(list(accumulate(workload.queries, initial=0)), dtype=torch.int32),
        context_lens=torch.tensor(workload.contexts, dtype=torch.int32),
        query_lens=workload.queries,
        contexts=workload.contexts,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Median milliseconds of each, and the median of their ratio, turn by turn."""

    cpu: float
    sdpa: float
    ratio: float


def compare(layers: list[Layer], cpu: AttentionBackend, sdpa: AttentionBackend, turns: int) -> Comparison:
    """Layers take turns: as in a model, the others' K and V have gone through the caches before one is read again."""
    for layer in layers:
        layer.run(cpu, 1), layer.run(sdpa, 1)
    repeats = max(1, int(2 / layers[0].run(sdpa, 1)))
    pairs = []
    for turn in range(turns):
        layer = layers[turn % len(layers)]
        pairs.append((layer.run(cpu, repeats), layer.run(sdpa, repeats)))
    return Comparison(
        statistics.median(ours for ours, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        statistics.median(theirs / ours for ours, theirs in pairs),
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, default in (
        ("heads", 9),
        ("kv-heads", 3),
        ("dim", 64),
        ("block-size", 16),
        ("turns", 21),
        ("layers", 4),
        ("threads", torch.get_num_threads()),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--only", default="", help="run workloads whose name contains this")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    shape = Shape(args.heads, args.kv_heads, args.dim, args.block_size, getattr(torch, args.dtype))
    cpu, sdpa = load_cpu_backend(default_home() / "operators", print), SdpaBackend()
    print(f"{'ms per layer':32}{'cpu':>10}{'sdpa':>10}{'ratio':>8}")
    for workload in workloads():
        if args.only in workload.name:
            layers = [Layer(shape, workload) for _ in range(args.layers)]
            result = compare(layers, cpu, sdpa, args.turns)
            print(f"{workload.name:32}{result.cpu:10.3f}{result.sdpa:10.3f}{result.ratio:8.1f}", flush=True)


if __name__ == "__main__":
    main()
