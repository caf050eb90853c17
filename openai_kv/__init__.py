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
from openai_kv.errors import RecordsLostError
from openai_kv.hookspecs import hookimpl
from openai_kv.metrics import (
    METRICS_CONTRACT_VERSION,
    CacheStats,
    EvictionStats,
    GenerationStats,
    HttpStats,
    LookupStats,
    MetricsExporter,
    RequestStats,
    ServerInfo,
    StepStats,
)
from openai_kv.request import RequestInfo

__version__ = "0.1.0"

__all__ = [
    "METRICS_CONTRACT_VERSION",
    "POLICY_CONTRACT_VERSION",
    "BlockInfo",
    "CacheInfo",
    "CacheStats",
    "CandidateQueue",
    "EvictionPolicy",
    "EvictionStats",
    "GenerationStats",
    "GhostList",
    "HttpStats",
    "LookupStats",
    "MetricsExporter",
    "PriorityPolicy",
    "RecordsLostError",
    "RequestInfo",
    "RequestStats",
    "Segment",
    "SegmentedPolicy",
    "ServerInfo",
    "StepStats",
    "__version__",
    "hookimpl",
]
