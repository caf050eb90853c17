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
from openai_kv.errors import RecordsLostError, TierFullError
from openai_kv.grammar.lark import Lark, json_of
from openai_kv.hookspecs import hookimpl
from openai_kv.metrics import (
    CacheStats,
    EvictionStats,
    GenerationStats,
    HttpStats,
    LookupStats,
    RequestStats,
    ServerInfo,
    StepStats,
    TierStats,
    TransferStats,
    WindowStats,
)
from openai_kv.metrics_exporter import METRICS_CONTRACT_VERSION, MetricsExporter
from openai_kv.parsing.output import Output, Reading
from openai_kv.parsing.reading import read_call, read_object, until, visible
from openai_kv.parsing.tool_parser import CallSyntax, Tool, ToolParser
from openai_kv.request import RequestInfo
from openai_kv.tiers.tier import TIER_CONTRACT_VERSION, CacheTier, TierInfo, TierUsage

__version__ = "0.1.0"

__all__ = [
    "METRICS_CONTRACT_VERSION",
    "POLICY_CONTRACT_VERSION",
    "TIER_CONTRACT_VERSION",
    "BlockInfo",
    "CacheInfo",
    "CacheStats",
    "CacheTier",
    "CallSyntax",
    "CandidateQueue",
    "EvictionPolicy",
    "EvictionStats",
    "GenerationStats",
    "GhostList",
    "HttpStats",
    "Lark",
    "LookupStats",
    "MetricsExporter",
    "Output",
    "PriorityPolicy",
    "Reading",
    "RecordsLostError",
    "RequestInfo",
    "RequestStats",
    "Segment",
    "SegmentedPolicy",
    "ServerInfo",
    "StepStats",
    "TierFullError",
    "TierInfo",
    "TierStats",
    "TierUsage",
    "Tool",
    "ToolParser",
    "TransferStats",
    "WindowStats",
    "__version__",
    "hookimpl",
    "json_of",
    "read_call",
    "read_object",
    "until",
    "visible",
]
