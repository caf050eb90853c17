"""For authors of eviction policies: `check_policy(MyPolicy)` in a test, or `PolicyConformance` as its base class."""

from openai_kv.testing.conformance import (
    PolicyConformance,
    PolicyReport,
    check_cost,
    check_determinism,
    check_lives,
    check_memory,
    check_policy,
)
from openai_kv.testing.flat import DecisionCost
from openai_kv.testing.watch import PolicyFailure

__all__ = [
    "DecisionCost",
    "PolicyConformance",
    "PolicyFailure",
    "PolicyReport",
    "check_cost",
    "check_determinism",
    "check_lives",
    "check_memory",
    "check_policy",
]
