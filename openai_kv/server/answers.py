"""What routes answer, as JSON Schema: the fields a client may count on."""

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
ANYTHING: Schema = {}


def record(**fields: Schema) -> Schema:
    """An object with at least these."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def array(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def constant(value: str) -> Schema:
    return {"type": "string", "enum": [value]}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def generated(kind: str, **fields: Schema) -> Schema:
    """What a model said, under an id."""
    return record(id=TEXT, object=constant(kind), created=COUNT, model=TEXT, usage=USAGE, **fields)


ERROR = record(error=record(message=TEXT, type=TEXT, param=nullable(TEXT), code=TEXT))
USAGE = record(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=record(cached_tokens=COUNT, cache_write_tokens=COUNT),
)
ENDING = {"finish_reason": nullable(TEXT), "stop_reason": ANYTHING}
CALL = record(id=TEXT, type=constant("function"), function=record(name=TEXT, arguments=TEXT))
MESSAGE = record(role=TEXT, content=nullable(TEXT))
MESSAGE["properties"] |= {"reasoning_content": TEXT, "tool_calls": array(CALL)}
CHAT = generated("chat.completion", choices=array(record(index=COUNT, message=MESSAGE, **ENDING)))
COMPLETION = generated("text_completion", choices=array(record(index=COUNT, text=TEXT, **ENDING)))
GENERATION = generated(
    "generation",
    text=TEXT,
    token_ids=array(COUNT),
    prompt_token_ids=array(COUNT),
    cache_hit_tokens=COUNT,
    cache_write_tokens=COUNT,
    cache_hit_kind=TEXT,
    timings=record(),
    **ENDING,
)
OUTPUT_ITEM = record(id=TEXT, type=TEXT, status=TEXT)
RESPONSE_USAGE = record(
    input_tokens=COUNT,
    input_tokens_details=record(cached_tokens=COUNT, cache_write_tokens=COUNT),
    output_tokens=COUNT,
    output_tokens_details=record(reasoning_tokens=COUNT),
    total_tokens=COUNT,
)
RESPONSE = record(
    id=TEXT,
    object=constant("response"),
    created_at=COUNT,
    model=TEXT,
    status=TEXT,
    incomplete_details=nullable(record(reason=TEXT)),
    output=array(OUTPUT_ITEM),
    previous_response_id=nullable(TEXT),
    usage=RESPONSE_USAGE,
)
FORGOTTEN = record(id=TEXT, object=constant("response"), deleted=FLAG)
EMBEDDINGS = record(
    object=constant("list"),
    model=TEXT,
    data=array(record(object=constant("embedding"), index=COUNT, embedding={"anyOf": [array(NUMBER), TEXT]})),
    usage=record(prompt_tokens=COUNT, total_tokens=COUNT),
)
UNPINNED = record(id=TEXT, deleted=FLAG)
INPUT_TOKENS = record(object=constant("response.input_tokens"), input_tokens=COUNT)
MODEL = record(id=TEXT, object=constant("model"), created=COUNT, owned_by=TEXT, max_model_len=nullable(COUNT))
MODELS = record(object=constant("list"), data=array(MODEL))
TOKENS = record(count=COUNT, max_model_len=COUNT, tokens=array(COUNT), token_strs=nullable(array(TEXT)))
VERSION = record(version=TEXT, api=COUNT, python=TEXT, torch=TEXT, transformers=TEXT, model=TEXT)
CACHE_STATS = record(
    model=TEXT,
    block_size=COUNT,
    policy=record(name=TEXT, options=record()),
    blocks=record(total=COUNT, free=COUNT, used=COUNT, cached=COUNT, referenced=COUNT),
    hit_count=COUNT,
    miss_count=COUNT,
    hit_rate=NUMBER,
    eviction_count=COUNT,
    attention_read_bytes=COUNT,
    active_requests=COUNT,
    since=NUMBER,
)
CACHE_TREE = record(
    root=COUNT,
    block_size=COUNT,
    total_nodes=COUNT,
    truncated=FLAG,
    nodes=array(record(id=COUNT, parent=COUNT, depth_tokens=COUNT, tokens=COUNT, blocks=COUNT, children=COUNT)),
)
CACHE_BLOCKS = record(
    total=COUNT,
    offset=COUNT,
    limit=COUNT,
    next_offset=nullable(COUNT),
    blocks=array(record(block_id=COUNT, state=TEXT, tokens=COUNT, ref_count=COUNT, hit_count=COUNT)),
)
PIN = record(
    id=TEXT,
    label=nullable(TEXT),
    tokens=COUNT,
    blocks=COUNT,
    cached_tokens=COUNT,
    created=COUNT,
    expires_at=COUNT,
)
PINS = record(pins=array({"allOf": [PIN, record(hits=COUNT)]}))
RESET = record(success=FLAG, freed_blocks=COUNT, kept_blocks=COUNT)
PLUGIN = record(name=TEXT, version=TEXT, source=TEXT, hooks=array(TEXT), active=FLAG, options=record())
PLUGINS = record(plugins=array(PLUGIN))
