"""Settings of one upstream: another OpenAI-compatible server that answers for some model names."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def check_base_url(url: str) -> str:
    """http or https, a host, and nothing that a path can't be added to; without the slash at its end."""
    parts = urlsplit(url)  # raises ValueError for what is no URL
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0 or any(map(str.isspace, url)):
        raise ValueError("should be a URL like https://api.example.com/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("should hold no user or password: keys come from api_key_env")
    if parts.query or parts.fragment:
        raise ValueError("should have no query and no fragment")
    return url.rstrip("/")


class UpstreamSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base_url: Annotated[str, AfterValidator(check_base_url)] = Field(description="where its /chat/completions hangs")
    api_key_env: str = Field("", description="environment variable with its API key; empty = it gets none")
    model: str = Field("", description="name to send instead of the client's; empty = the client's")
    connect_timeout: float = Field(5, gt=0, description="seconds a connection may take")
    timeout: float = Field(600, gt=0, description="longest silence in seconds")
    max_connections: int = Field(100, gt=0, description="most connections at a time; further requests wait")
