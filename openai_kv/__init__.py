"""openai-kv: what a plugin imports. Importing this loads neither torch nor starlette."""

from openai_kv.cache.candidate_queue import CandidateQueue
from openai_kv.cache.policy import (
    POLICY_CONTRACT_VERSION,
    BlockInfo,
    CacheInfo,
    EvictionPolicy,
    PriorityPolicy,
)
from openai_kv.cache.segments import GhostList, Segment, SegmentedPolicy
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
    "POLICY_CONTRACT_VERSION",
    "BlockInfo",
    "CacheInfo",
    "CacheStats",
    "CandidateQueue",
    "EvictionPolicy",
    "EvictionStats",
    "GhostList",
    "HttpStats",
    "MetricsExporter",
    "PriorityPolicy",
    "RequestInfo",
    "RequestStats",
    "Segment",
    "SegmentedPolicy",
    "ServerInfo",
    "StepStats",
    "__version__",
    "hookimpl",
]
