"""What a KV format costs in right answers: python benchmarks/kv_tasks.py DATA [--tasks niah] [--json FILE]

DATA is a folder with GSM8K's and RULER's items (task_items.py says which files). Each format answers the same items,
greedily and with the same weights, through the engine: batched, prefixes shared. Intervals are 95 %, bootstrapped over
items; `change` is paired with the first format's answers. A format is worth a run only where the first scores clearly
above chance, which is 0 for numbers, and 1 in 51 for a needle.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.kv_scores import Interval, bootstrap
from benchmarks.record import save
from benchmarks.task_items import TASKS, Task
from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.cpu import CpuBackend
from openai_kv.model_runner.attention.select import BACKENDS, select_backend
from openai_kv.model_runner.fused.choice import brgemm_rows
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.loader import CausalLM, load_model, resolve_device
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.tokenizer import Tokenizer
from tests.harness import Run, Shape, build_engine, make_request

CHUNK, SEQUENCES = 512, 16


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Of one task and format; `score` and `change` are shares of the items. `token_bytes`: of the pool's tensors."""

    task: str
    name: str
    token_bytes: float
    items: int
    score: Interval
    change: Interval

    def __str__(self) -> str:
        score, change = _show(self.score), _show(self.change)
        return (
            f"{self.task:11}{self.name:11}{self.token_bytes:7.0f} B/token{self.items:5} items{score:>22} %{change:>22}"
        )


def _show(interval: Interval) -> str:
    return f"{100 * interval.value:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


@dataclass(frozen=True, slots=True)
class Subject:
    """What all formats share."""

    model: CausalLM
    backend: AttentionBackend
    tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: Path, dtype: str, attention_backend: str) -> "Subject":
        device = resolve_device("auto")
        backend = select_backend(attention_backend, device, default_home() / "operators")
        model = load_model(folder, dtype=dtype, device=device)
        if isinstance(backend, CpuBackend):
            model = optimize(model, brgemm_rows())
        return cls(model, backend, Tokenizer.load(folder))

    def runner(self, kv_format: str, block_size: int, num_blocks: int) -> ModelRunner:
        settings = RunnerSettings(
            block_size=block_size,
            num_blocks=num_blocks,
            kv_cache_dtype=kv_format,
            max_num_batched_tokens=CHUNK,
            max_num_seqs=SEQUENCES,
            window_layout="full",
        )
        return ModelRunner(self.model, self.backend, kv_format, settings)


def answer(runner: ModelRunner, tokenizer: Tokenizer, task: Task, prompts: Sequence[Sequence[int]]) -> list[str]:
    """What it says to each prompt; all are submitted at once."""
    pool = runner.kv_pool
    shape = Shape(pool.num_blocks, pool.block_size, SEQUENCES, CHUNK, pool.num_blocks * pool.block_size)
    run = Run(build_engine(runner, shape, tokenizer=tokenizer))
    requests = [make_request(prompt, task.max_tokens, temperature=0.0, stop=task.stop) for prompt in prompts]
    run.generate(*requests)
    return ["".join(output.text for output in run.outputs[request.request_id]) for request in requests]


def compare(args: argparse.Namespace, subject: Subject, name: str) -> list[TaskScore]:
    """Of one task; the first format is the reference."""
    task = TASKS[name](args.data)
    items = task.items[: args.items]
    prompts = [subject.tokenizer.encode(item.prompt) for item in items]
    longest = max(map(len, prompts)) + task.max_tokens
    num_blocks = SEQUENCES * -(-longest // args.block_size)
    scores: list[TaskScore] = []
    reference = None
    for kv_format in args.formats:
        runner = subject.runner(kv_format, args.block_size, num_blocks)
        texts = answer(runner, subject.tokenizer, task, prompts)
        right = np.array([float(task.right(text, item.answer)) for text, item in zip(texts, items, strict=True)])
        reference = right if reference is None else reference
        size = runner.kv_pool.block_bytes / args.block_size
        scores.append(TaskScore(name, kv_format, size, len(items), bootstrap(right), bootstrap(right - reference)))
        print(scores[-1], *map(repr, texts[: args.show]), sep="\n", flush=True)
    return scores


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder")
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=tuple(TASKS))
    parser.add_argument("--items", type=int, default=100, help="of each task at most [100]")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--formats", nargs="+", choices=tuple(FORMATS), default=("bfloat16", "int8", "int8-int4"))
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--attention-backend", choices=BACKENDS, default="auto")
    parser.add_argument("--show", type=int, default=0, help="print so many answers [0]")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    args = parse()
    folder = model_store.resolve(args.model, home=default_home(), progress=print)
    subject = Subject.load(folder, args.dtype, args.attention_backend)
    scores = [score for name in args.tasks for score in compare(args, subject, name)]
    if args.json:
        save(args.json, [asdict(score) for score in scores])


if __name__ == "__main__":
    main()
