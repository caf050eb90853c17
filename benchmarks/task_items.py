"""Questions with one right answer each: GSM8K's, with worked examples before them, and RULER's needles."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GSM8K, RULER = Path("gsm8k/test_first200.jsonl"), Path("ruler/niah_multikey_3_4096_first40.jsonl")
SHOTS = 5  # the file's last problems, which are no items
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Item:
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Task:
    """`right`: whether a text, which ends after `max_tokens` or at `stop`, gives an answer."""

    items: Sequence[Item]
    right: Callable[[str, str], bool]
    max_tokens: int
    stop: tuple[str, ...] = ()


def gsm8k(folder: Path) -> Task:
    """Cobbe et al. 2021: reasoning and number are to be found."""
    shots, rows = _problems(folder)
    items = [Item(f"{shots}Question: {row['question']}\nAnswer:", _number(row["answer"])) for row in rows]
    return Task(items, lambda text, answer: _number(text) == answer, 256, ("\n\n", "Question:"))


def gsm8k_last(folder: Path) -> Task:
    """Teacher-forced: only the number that ends the given reasoning is to be said."""
    shots, rows = _problems(folder)
    items = []
    for row in rows:
        reasoning, _, number = row["answer"].rpartition(" ")
        items.append(Item(f"{shots}Question: {row['question']}\nAnswer: {reasoning}", _number(number)))
    return Task(items, lambda text, answer: _number(text) == answer, 8, ("\n",))


def niah(folder: Path) -> Task:
    """Hsieh et al. 2024, niah_multikey_3: the value of one of 51 keys, all of them UUIDs, in 4,200 tokens."""
    items = [Item(row["input"], row["outputs"][0]) for row in _rows(folder / RULER)]
    return Task(items, lambda text, answer: answer in text, 48, ("\n",))


TASKS: Mapping[str, Callable[[Path], Task]] = {"gsm8k": gsm8k, "gsm8k-last": gsm8k_last, "niah": niah}


def _problems(folder: Path) -> tuple[str, list[dict[str, str]]]:
    """The worked examples that stand before each question, and the rows that are left to ask."""
    rows = [{**row, "answer": re.sub(r"<<.*?>>", "", row["answer"])} for row in _rows(folder / GSM8K)]
    shots = [f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows[-SHOTS:]]
    return "".join(shots), rows[:-SHOTS]


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _number(text: str) -> str:
    """What follows ####, else the last number; empty if there is none."""
    found = NUMBER.findall(text.rpartition("####")[2])
    if "####" not in text:
        return found[-1].replace(",", "") if found else ""
    return found[0].replace(",", "") if found else ""
