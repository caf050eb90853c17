"""openai-kv: what a plugin imports. Importing this loads neither torch nor starlette."""

from openai_kv.cache.policy import BlockInfo, EvictionPolicy, PriorityPolicy
from openai_kv.hookspecs import hookimpl
from openai_kv.metrics import (
    CacheStats,
    EvictionStats,
    HttpStats,
    MetricsExporter,
    RequestStats,
    ServerInfo,
    StepStats,
)
from openai_kv.request import RequestInfo

__version__ = "0.1.0"

__all__ = [
    "BlockInfo",
    "CacheStats",
    "EvictionPolicy",
    "EvictionStats",
    "HttpStats",
    "MetricsExporter",
    "PriorityPolicy",
    "RequestInfo",
    "RequestStats",
    "ServerInfo",
    "StepStats",
    "__version__",
    "hookimpl",
]
