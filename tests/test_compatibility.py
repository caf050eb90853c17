"""docs/compatibility.md says of every endpoint and parameter what the server's own tables say, and names real tests."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from openai_kv.config import ServerSettings
from openai_kv.errors import ParameterError
from openai_kv.server.fields import Accepted, Check, Neutral, Notes, Object
from openai_kv.server.operations import OPERATIONS
from openai_kv.server.shared_fields import Limits
from tests.fakes import fake_info
from tests.server.serving import check_error, site

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs" / "compatibility.md").read_text(encoding="utf-8")
LIMITS = Limits.of(ServerSettings(), fake_info())
BODIES = {name: operation.body(LIMITS) for name, operation in OPERATIONS.items() if operation.body}
PEER_VERDICT = re.compile(r"(honoured|accepted|refused|yes|\?|-)( / (honoured|accepted|refused|\?))?( \(.+\))?")


@dataclass(frozen=True)
class Row:
    """One line of a table: the code spans of its first cell, and the other cells."""

    names: tuple[str, ...]
    here: str
    peers: tuple[str, ...]
    tests: tuple[str, ...]


def sections() -> dict[str, list[Row]]:
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return {title: list(rows(text)) for title, text in zip(parts[::2], parts[1::2], strict=True)}


def rows(text: str) -> Iterator[Row]:
    for line in text.splitlines():
        if line.startswith("| `"):
            first, here, *peers, tests = (cell.strip() for cell in line.strip("|").split("|"))
            yield Row(spans(first), here, tuple(peers), spans(tests))


def spans(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


SECTIONS = sections()
ALL_ROWS = [row for rows in SECTIONS.values() for row in rows]


def verdicts(body: Object) -> Iterator[tuple[str, str]]:
    """Each field with what becomes of it; those of an object one by one."""
    for name, check in body.fields.items():
        if isinstance(check, Object):
            yield from ((f"{name}.{inner}", verdict(field)) for inner, field in check.fields.items())
        else:
            yield name, verdict(check)


def verdict(check: Check) -> str:
    return "refused" if isinstance(check, Neutral) else "accepted" if isinstance(check, Accepted) else "honoured"


def documented(operation: str) -> Mapping[str, str]:
    """Of all tables with this operation in their title."""
    tables = [rows for title, rows in SECTIONS.items() if operation in spans(title)]
    return {name: row.here.split(" (")[0] for rows in tables for row in rows for name in row.names}


@pytest.mark.parametrize("operation", BODIES)
def test_every_parameter_is_there_with_what_becomes_of_it(operation: str) -> None:
    assert documented(operation) == dict(verdicts(BODIES[operation]))


def test_every_endpoint_is_there_and_no_other() -> None:
    assert sorted(row.names for row in SECTIONS["Endpoints"]) == sorted((name,) for name in OPERATIONS)
    titles = {name for title in SECTIONS for name in spans(title)}
    assert titles == set(BODIES)


def test_every_row_names_tests_that_exist() -> None:
    known: dict[str, set[str]] = {}
    for row in ALL_ROWS:
        assert row.tests, row
        for test in row.tests:
            file, _, name = test.partition("::")
            assert name in known.setdefault(file, functions(TESTS / file)), test


def functions(file: Path) -> set[str]:
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_verdicts_on_others_are_of_the_words_explained() -> None:
    assert [cell for row in ALL_ROWS for cell in row.peers if not PEER_VERDICT.fullmatch(cell)] == []


@pytest.mark.parametrize("operation", BODIES)
def test_what_is_refused_is_refused_by_name(operation: str) -> None:
    for name, check in BODIES[operation].fields.items():
        if isinstance(check, Neutral):
            with pytest.raises(ParameterError) as raised:
                BODIES[operation]({"model": "m", name: "anything"}, "", Notes())
            assert (raised.value.code, raised.value.param) == ("unsupported_parameter", name)


def test_parameters_of_others_are_refused_with_the_word_for_it() -> None:
    body = BODIES["POST /v1/chat/completions"]
    for line in TEXT.partition("## Parameters of others")[2].splitlines()[4:]:
        _, names, word = (cell.strip() for cell in line.strip("|").split("|"))
        for name in spans(names):
            with pytest.raises(ParameterError) as raised:
                body({"model": "m", name: 1}, "", Notes())
            assert (raised.value.code, raised.value.param) == ("unknown_parameter", name)
            assert not word or f"Did you mean '{spans(word)[0]}'?" in str(raised.value), name


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_parts_that_are_no_text_are_refused(kind: str) -> None:
    async with site() as server:
        answer = await server.chat(messages=[{"role": "user", "content": [{"type": kind, kind: {}}]}])
        check_error(answer, 400, "unsupported_parameter", "messages[0].content[0].type")
