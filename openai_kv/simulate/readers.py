"""Read traces: Mooncake, Qwen-Bailian, kv-cache-tester and our own recordings. The file says itself which it is."""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from openai_kv.errors import ConfigError
from openai_kv.simulate.trace import PrefixIds, Trace, TraceRequest

Record = Mapping[str, Any]
MOONCAKE_BLOCK = 512
QWEN_BLOCK = 16
RECORDED = "openai-kv-trace"
SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


def read_trace(path: Path) -> Trace:
    """One file (JSON or JSON lines, gzip too), or a folder of conversations. Raises ConfigError, one line."""
    try:
        records = [record for file in trace_files(path) for record in read_records(file)]
    except OSError as error:
        raise ConfigError(f"trace {error.filename or path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"trace {path}: {error}") from None
    if not records:
        raise ConfigError(f"trace {path}: it is empty")
    try:
        return READERS[detect(records[0])](trace_name(path), records)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"trace {path}: not a trace we know: {type(error).__name__}: {error}") from None


def trace_name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")


def trace_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))


def read_records(path: Path) -> Iterator[Record]:
    """JSON lines; a file that is one value over many lines is one record, a list one record an item."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        first = json.loads(lines[0]) if lines else []
    except ValueError:
        lines, first = [text], json.loads(text)
    yield from first if isinstance(first, list) else [first]
    yield from map(json.loads, lines[1:])


def detect(record: Record) -> str:
    if record.get("format") == RECORDED:
        return "openai-kv"
    if "requests" in record:
        return "kv-cache-tester"
    return "qwen-bailian" if "chat_id" in record else "mooncake"


def read_mooncake(name: str, records: list[Record]) -> Trace:
    """FAST'25 release of Mooncake (Qin et al. 2025): milliseconds, 512-token blocks, file order."""
    ids = PrefixIds()
    requests = tuple(
        TraceRequest(
            time=record["timestamp"] / 1000,
            hash_ids=ids.intern(record["hash_ids"]),
            input_tokens=record["input_length"],
            output_tokens=record["output_length"],
        )
        for record in records
    )
    return Trace(name, "mooncake", MOONCAKE_BLOCK, requests)


def read_qwen(name: str, records: list[Record]) -> Trace:
    """Qwen-Bailian (Wang et al., ATC'25): seconds, 16-token blocks; a chat goes on where `parent_chat_id` points."""
    ids = PrefixIds()
    sessions: dict[int, str] = {}
    requests = []
    for record in records:
        session = sessions.get(record["parent_chat_id"], str(record["chat_id"]))
        sessions[record["chat_id"]] = session
        requests.append(
            TraceRequest(
                time=record["timestamp"],
                hash_ids=ids.intern(record["hash_ids"]),
                input_tokens=record["input_length"],
                output_tokens=record["output_length"],
                session_id=session,
                turn=record["turn"],
                kind=record["type"],
            )
        )
    return Trace(name, "qwen-bailian", QWEN_BLOCK, tuple(requests))


def read_conversations(name: str, records: list[Record]) -> Trace:
    """kv-cache-tester: one record a conversation, ids local to it. All conversations start together, at `t` 0."""
    ids = PrefixIds()
    sizes = {record["block_size"] for record in records}
    if len(sizes) > 1:
        raise ValueError(f"conversations with different block sizes: {sorted(sizes)}")
    requests = [request for record in records for request in conversation(ids, record)]
    return Trace(name, "kv-cache-tester", sizes.pop(), tuple(sorted(requests, key=lambda request: request.time)))


def conversation(ids: PrefixIds, record: Record) -> Iterator[TraceRequest]:
    scope = record["id"] if record.get("hash_id_scope") == "local" else None
    for turn, request in enumerate(sorted(leaves(record["requests"]), key=lambda leaf: float(leaf["t"])), start=1):
        yield TraceRequest(
            time=request["t"],
            hash_ids=ids.intern(request["hash_ids"], scope),
            input_tokens=request["in"],
            output_tokens=request["out"],
            session_id=record["id"],
            turn=turn,
            kind="chat",
        )


def leaves(requests: list[Record]) -> Iterator[Record]:
    """The requests themselves; what only groups others (a subagent) is opened."""
    for request in requests:
        if "requests" in request:
            yield from leaves(request["requests"])
        else:
            yield request


def read_recorded(name: str, records: list[Record]) -> Trace:
    """`openai-kv serve --record-trace`: a header each start, then a line a request as it ended; whole blocks only."""
    sizes = {record["block_tokens"] for record in records if "format" in record}
    if len(sizes) > 1:
        raise ValueError(f"recordings with different block sizes: {sorted(sizes)}")
    (size,), ids, start = sizes, PrefixIds(), 0
    requests = []
    for record in records:
        if "format" in record:
            start += 1
            continue
        requests.append(recorded(ids.intern(record["hash_ids"], start), record, size))
    return Trace(name, "openai-kv", size, tuple(sorted(requests, key=lambda request: request.time)))


def recorded(chain: tuple[int, ...], record: Record, block_tokens: int) -> TraceRequest:
    prompt_blocks = record["input_length"] // block_tokens
    return TraceRequest(
        time=record["timestamp"],
        hash_ids=chain[:prompt_blocks],
        input_tokens=record["input_length"],
        output_tokens=record["output_length"],
        session_id=record["session_id"],
        turn=record["turn"],
        kind=record["kind"],
        answer_ids=chain[prompt_blocks:],
    )


READERS = {
    "mooncake": read_mooncake,
    "qwen-bailian": read_qwen,
    "kv-cache-tester": read_conversations,
    "openai-kv": read_recorded,
}
