"""Other OpenAI-compatible servers: which of them answers for a model, and the connections to them."""

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Self

import httpx
from starlette.datastructures import Headers

from openai_kv.config_upstreams import UpstreamSettings
from openai_kv.errors import ConfigError, UpstreamError
from openai_kv.server.names import is_pattern, matches
from openai_kv.server.upstream_models import Header, ModelNames

HOPS = "x-openai-kv-hops"
MAX_HOPS = 3
IDLE_SECONDS = 4  # less than servers keep idle connections (uvicorn: 5): none is used while being closed


class Upstream:
    """One entry of the settings. `pattern` is an exact name or a glob; the key is in `headers` and nowhere else."""

    def __init__(self, pattern: str, settings: UpstreamSettings, key: str = "") -> None:
        self.pattern = pattern
        self.settings = settings
        self.models = ModelNames(self.send)
        self._headers: list[Header] = [(b"accept-encoding", b"identity")]
        if key:
            self._headers.append((b"authorization", f"Bearer {key}".encode()))
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(settings.timeout, connect=settings.connect_timeout),
            limits=httpx.Limits(
                max_connections=settings.max_connections,
                max_keepalive_connections=settings.max_connections,
                keepalive_expiry=IDLE_SECONDS,
            ),
        )

    @property
    def server(self) -> tuple[str, int]:
        """Its host and port."""
        url = httpx.URL(self.settings.base_url)
        return url.host, url.port or (443 if url.scheme == "https" else 80)

    async def send(self, method: str, path: str, headers: Sequence[Header], body: bytes) -> httpx.Response:
        """The answer with its body still to be read; close it. No header goes out but these and our own.

        Raises UpstreamError instead of following a redirect, and httpx.TransportError.
        """
        url = self.settings.base_url + path
        timeout = {"timeout": self._client.timeout.as_dict()}
        request = httpx.Request(method, url, headers=[*headers, *self._headers], content=body, extensions=timeout)
        response = await self._client.send(request, stream=True)
        if response.is_redirect:
            await response.aclose()
            raise UpstreamError("The upstream of this model answers with a redirect.")
        return response

    async def close(self) -> None:
        await self._client.aclose()


class Upstreams:
    """All of them, in the order of the file. `instance` is what tells us that a request has been here before."""

    def __init__(self, upstreams: Sequence[Upstream] = ()) -> None:
        self.instance = secrets.token_hex(4)
        self._exact = {upstream.pattern: upstream for upstream in upstreams if not is_pattern(upstream.pattern)}
        self.globs = tuple(upstream for upstream in upstreams if is_pattern(upstream.pattern))

    @classmethod
    def load(cls, settings: Mapping[str, UpstreamSettings], environ: Mapping[str, str] | None = None) -> Self:
        """With the keys of the environment. Raises ConfigError if a key is missing or can't be sent, as for a URL."""
        variables = os.environ if environ is None else environ
        for entry in settings.values():
            check_url(entry.base_url)
        return cls([Upstream(name, entry, read_key(entry, variables)) for name, entry in settings.items()])

    @property
    def names(self) -> Sequence[str]:
        """The exact ones."""
        return list(self._exact)

    def choose(self, model: str) -> Upstream | None:
        """An exact name, else the first glob that matches."""
        return self._exact.get(model) or next((glob for glob in self.globs if matches(model, glob.pattern)), None)

    def next_hops(self, headers: Headers) -> Header:
        """The header to send on; raises UpstreamError `upstream_loop` if the request has been here or too far."""
        passed = [hop.strip() for line in headers.getlist(HOPS) for hop in line.split(",") if hop.strip()]
        if len(passed) >= MAX_HOPS or self.instance in passed:
            raise UpstreamError("This request was passed on from server to server in a circle.", code="upstream_loop")
        return HOPS.encode(), ", ".join([*passed, self.instance]).encode("latin-1")

    async def close(self) -> None:
        await asyncio.gather(*(upstream.close() for upstream in (*self._exact.values(), *self.globs)))


def check_url(url: str) -> None:
    """What the settings let through may still have a host that no connection can be made to."""
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"base_url = {url!r}: {error}") from None


def read_key(settings: UpstreamSettings, environ: Mapping[str, str]) -> str:
    variable = settings.api_key_env
    key = environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise ConfigError(f"the key of {settings.base_url} should be in the environment variable {variable}")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key in {variable} holds characters that a header can't")
    return key
