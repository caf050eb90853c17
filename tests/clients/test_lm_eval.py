"""`lm-eval`: log likelihoods as a forward pass in float64 has them, and answers to chats."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.clients.programs import find, run
from tests.clients.service import Service

pytestmark = [pytest.mark.clients, pytest.mark.model, pytest.mark.usefixtures("one_thread")]
ITEMS = Path(__file__).parent.parent / "data" / "gsm8k_first8.jsonl"
QUESTION = "Question: {{question}}\nAnswer:"
TASKS: dict[str, dict[str, Any]] = {
    "answers": {
        "output_type": "loglikelihood",
        "doc_to_text": QUESTION,
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "questions": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
    "chats": {
        "output_type": "generate_until",
        "doc_to_text": QUESTION,
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["####", "\n\n"], "max_gen_toks": 12, "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@dataclass(frozen=True, slots=True)
class LmEval:
    """The program, with our tasks in a folder."""

    folder: Path

    def write_tasks(self) -> None:
        for name, task in TASKS.items():
            files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(ITEMS)}}}
            whole = {"task": f"kv_{name}", **files, "test_split": "test", **task}
            (self.folder / f"{name}.yaml").write_text(json.dumps(whole))  # JSON is YAML too

    def samples(self, task: str, model: str, arguments: dict[str, object], *more: str) -> list[dict[str, Any]]:
        """What it got for each item, in order."""
        results = self.folder / model
        given = ",".join(f"{name}={value}" for name, value in arguments.items())
        command = [find("lm_eval"), "--model", model, "--model_args", given, "--tasks", f"kv_{task}"]
        where = ["--include_path", str(self.folder), "--output_path", str(results), "--log_samples"]
        run([*command, *where, *more], HF_HOME=str(self.folder / "home"))
        (file,) = results.rglob(f"samples_kv_{task}_*.jsonl")
        return sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: int(sample["doc_id"]))


@pytest.fixture
def lm_eval(tmp_path: Path) -> LmEval:
    made = LmEval(tmp_path)
    made.write_tasks()
    return made


def served(service: Service, **more: object) -> dict[str, object]:
    return {"model": service.model, "base_url": f"{service.base_url}/completions", **more}


class Exact:
    """The model in float64, by transformers alone."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def answer(self, sample: dict[str, Any]) -> tuple[float, bool]:
        """Log likelihood of a continuation, and whether each of its tokens is the likeliest."""
        given = sample["arguments"]["gen_args_0"]
        return self.score(self.ids(given["arg_0"] + given["arg_1"]), len(self.ids(given["arg_0"])))

    def text(self, sample: dict[str, Any]) -> float:
        """Log likelihood of a whole text, which lm-eval begins with this token."""
        return self.score([self.tokenizer.bos_token_id, *self.ids(sample["arguments"]["gen_args_0"]["arg_0"])], 1)[0]

    @torch.inference_mode()
    def score(self, ids: list[int], start: int) -> tuple[float, bool]:
        rows = self.model(torch.tensor([ids])).logits[0, start - 1 : -1].log_softmax(-1)
        wanted = torch.tensor(ids[start:])
        return rows.gather(1, wanted[:, None]).sum().item(), bool((rows.argmax(-1) == wanted).all())


@pytest.fixture(scope="module")
def exact(default_model: Path) -> Exact:
    return Exact(default_model)


@pytest.mark.parametrize("tokenizer", ["auto", "huggingface"])
def test_log_likelihoods(lm_eval: LmEval, service: Service, exact: Exact, tokenizer: str) -> None:
    """Its requests: token ids, echo, logprobs, one token. `auto`: it finds our tokenizer, over HTTP."""
    own = {"tokenizer": service.folder} if tokenizer == "huggingface" else {}
    arguments = served(service, tokenizer_backend=tokenizer, num_concurrent=2, **own)
    samples = lm_eval.samples("answers", "local-completions", arguments)
    got = [sample["resps"][0][0] for sample in samples]
    truth = [exact.answer(sample) for sample in samples]
    assert len(got) == 8
    assert [float(score) for score, _ in got] == pytest.approx([score for score, _ in truth], abs=1e-3)
    assert [is_greedy == "True" for _, is_greedy in got] == [is_greedy for _, is_greedy in truth]


def test_log_likelihoods_of_texts_in_batches(lm_eval: LmEval, service: Service, exact: Exact) -> None:
    arguments = served(service, tokenizer_backend="remote")
    samples = lm_eval.samples("questions", "local-completions", arguments, "--batch_size", "4")
    got = [float(sample["resps"][0][0]) for sample in samples]
    assert got == pytest.approx([exact.text(sample) for sample in samples], abs=1e-3)


def test_chats(lm_eval: LmEval, service: Service) -> None:
    arguments = {"model": service.model, "base_url": f"{service.base_url}/chat/completions", "num_concurrent": 2}
    samples = lm_eval.samples("chats", "local-chat-completions", arguments, "--apply_chat_template")
    questions = [json.loads(line)["question"] for line in ITEMS.read_text().splitlines()]
    limits = {"stop": ["####", "\n\n"], "max_tokens": 12}
    assert [sample["resps"][0][0] for sample in samples] == [
        service.answer(f"Question: {question}\nAnswer:", **limits) for question in questions
    ]
