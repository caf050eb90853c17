"""Which upstream answers for a model, what its settings may be, and what it has."""

import json
from typing import Any

import httpx
import pytest

from openai_kv.config import load_settings
from openai_kv.config_upstreams import UpstreamSettings
from openai_kv.errors import ConfigError
from openai_kv.server.renaming import with_model
from openai_kv.server.upstreams import Upstreams
from tests.server.remote import Remote, answering, remote, silence
from tests.server.serving import CHAT, check_error, live_site, site

URL = {"base_url": "http://127.0.0.1:9/v1"}


def load(entry: dict[str, Any], pattern: str = "gpt-*") -> UpstreamSettings:
    return load_settings({"upstreams": {pattern: entry}}).upstreams[pattern]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, "upstreams.gpt-*.base_url is missing"),
        ({"base_ulr": "http://x"}, "unknown setting upstreams.gpt-*.base_ulr; did you mean upstreams.gpt-*.base_url?"),
        ({"base_url": "ftp://x/v1"}, "upstreams.gpt-*.base_url = 'ftp://x/v1': should be a URL like https://"),
        ({"base_url": "https:///v1"}, "should be a URL"),
        ({"base_url": "api.example.com/v1"}, "should be a URL"),
        ({"base_url": "http://x y/v1"}, "should be a URL"),
        ({"base_url": "http://x:99999/v1"}, "upstreams.gpt-*.base_url"),
        ({"base_url": "https://me:secret@x/v1"}, "keys come from api_key_env"),
        ({"base_url": "https://x/v1?key=a"}, "no query"),
        (
            {**URL, "api_key": "secret"},
            "unknown setting upstreams.gpt-*.api_key; did you mean upstreams.gpt-*.api_key_env?",
        ),
        ({**URL, "timeout": 0}, "upstreams.gpt-*.timeout = 0: should be greater than 0"),
        ({**URL, "connect_timeout": float("nan")}, "upstreams.gpt-*.connect_timeout"),
        ({**URL, "max_connections": 1.5}, "upstreams.gpt-*.max_connections"),
        ("https://x/v1", "upstreams.gpt-* = 'https://x/v1'"),
    ],
)
def test_a_bad_entry_stops_the_start_in_one_line(entry: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(entry)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_an_entry_needs_a_name() -> None:
    with pytest.raises(ConfigError):
        load(URL, "")


def test_the_key_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_FAR_KEY", "")
    entry = {"gpt-*": load({**URL, "api_key_env": "OPENAI_KV_FAR_KEY"})}
    with pytest.raises(ConfigError, match="OPENAI_KV_FAR_KEY"):
        Upstreams.load(entry)
    with pytest.raises(ConfigError, match="a header can't"):
        Upstreams.load(entry, {"OPENAI_KV_FAR_KEY": "a\nb"})
    known = Upstreams.load(entry, {"OPENAI_KV_FAR_KEY": " secret "}).choose("gpt-1")
    assert known is not None and "secret" not in repr(known)


def test_a_host_that_can_not_be_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="base_url"):
        Upstreams.load({"gpt-*": load({"base_url": "http://exa\x7fmple/v1"})}, {})


def test_choice_of_an_upstream() -> None:
    names = ["b*", "bc*", "bcd", "x[1]*", "?"]
    known = Upstreams.load({name: load(URL, name) for name in names}, {})
    chosen = {model: known.choose(model) for model in ("bcd", "bce", "x[1]2", "x12", "z", "", "BC")}
    found = {model: upstream and upstream.pattern for model, upstream in chosen.items()}
    assert found == {"bcd": "bcd", "bce": "b*", "x[1]2": "x[1]*", "x12": None, "z": "?", "": None, "BC": None}


async def test_our_exact_names_come_first_and_our_patterns_last() -> None:
    entries = dict.fromkeys(("fake", "f*", "far-exact"), URL)
    async with site(model_names=("fake", "*"), upstreams=entries) as server:
        chosen = {model: server.context.upstream_for(model) for model in ("fake", "f1", "far-exact", "other", 5, None)}
        found = {model: upstream and upstream.pattern for model, upstream in chosen.items()}
        assert found == {"fake": None, "f1": "f*", "far-exact": "far-exact", "other": None, 5: None, None: None}
        assert (await server.chat(model="other")).status_code == 200
        check_error(await server.chat(model="f1"), 502, "upstream_unreachable")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"model":"a"}', b'{"model":"b\\u00fc"}'),
        (b' {\n"x" : {"model":"a"} ,\t"model"\r:"a\\"}", "y":[1,{"model":2}]} \n', None),
        ('{"é":"\N{SNOWMAN}","model":"é"}'.encode(), '{"é":"\N{SNOWMAN}","model":"b\\u00fc"}'.encode()),
        (b'{"model":1,"model":"a"}', b'{"model":"b\\u00fc","model":"b\\u00fc"}'),
        (b"{}", b"{}"),
        (b'{"x":{}}', b'{"x":{}}'),
    ],
)
def test_only_the_name_is_changed(before: bytes, after: bytes | None) -> None:
    expected = before.replace(b'"a\\"}"', b'"b\\u00fc"') if after is None else after
    assert with_model(before, "bü") == expected


def listing(*names: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in names]}).encode()


async def ids(client: httpx.AsyncClient) -> list[str]:
    return [model["id"] for model in (await client.get("/v1/models")).json()["data"]]


async def test_models_of_all() -> None:
    far_names = listing("gpt-2", "gpt-1", "gpt-2", "other", "fake", "gpt-exact", 7)
    async with remote(answering(far_names)) as far:
        entries = {name: {"base_url": f"{far.url}/v1"} for name in ("gpt-exact", "gpt-*", "g*", "fake")}
        async with live_site(upstreams=entries) as (_, url), httpx.AsyncClient(base_url=url) as client:
            secret = {"authorization": "Bearer secret", "cookie": "a=b"}
            models = (await client.get("/v1/models", headers=secret)).json()["data"]
            assert [model["id"] for model in models] == ["fake", "gpt-exact", "gpt-2", "gpt-1"]
            owners = [model["owned_by"] for model in models]
            assert owners == ["openai-kv", *["upstream"] * 3]
            assert models[0].keys() == models[1].keys()
            assert await ids(client) == ["fake", "gpt-exact", "gpt-2", "gpt-1"]
            assert [request.line for request in far.received] == ["GET /v1/models HTTP/1.1"] * 2, "each glob, once"
            assert set(far.received[0].headers) == {"host", "accept", "accept-encoding", "x-openai-kv-hops"}
            assert (await client.get("/v1/models/gpt-whatever")).json()["owned_by"] == "upstream"
            assert (await client.get("/v1/models/fake")).json()["owned_by"] == "openai-kv"
            check_error(await client.get("/v1/models/other"), 404, "model_not_found")


@pytest.mark.parametrize(
    "script",
    [
        answering(b"no json"),
        answering(b'{"data": 5}'),
        answering(b"[]"),
        answering(listing("gpt-1"), "500 Oops"),
        answering(b"[" * 100_000),
        answering(b" " * (4 * 2**20 + 1)),
        silence,
    ],
)
async def test_a_list_that_does_not_come_is_left_out_and_asked_for_again(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai_kv.server.upstream_models.MAX_WAIT", 0.3)
    async with remote(script) as far:
        entries = {"gpt-*": {"base_url": f"{far.url}/v1"}}
        async with live_site(upstreams=entries) as (server, url), httpx.AsyncClient(base_url=url) as client:
            assert await ids(client) == await ids(client) == ["fake"]
            assert len(far.received) == 2
            assert (await server.chat(**CHAT)).status_code == 200


async def test_old_names_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai_kv.server.upstream_models.KEPT_SECONDS", -1)

    async def script(far: Remote, reader: Any, writer: Any) -> None:
        await answering(listing(f"gpt-{len(far.received)}"))(far, reader, writer)

    async with remote(script) as far:
        entries = {"gpt-*": {"base_url": f"{far.url}/v1"}}
        async with live_site(upstreams=entries) as (_, url), httpx.AsyncClient(base_url=url) as client:
            assert [await ids(client), await ids(client)] == [["fake", "gpt-1"], ["fake", "gpt-2"]]
