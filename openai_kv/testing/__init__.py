"""For authors of plugins: `check_policy(MyPolicy)`, `check_tier(MyTier)` in a test, or classes to be its base."""

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
from openai_kv.testing.tier_conformance import TierConformance, TierFailure, check_tier
from openai_kv.testing.watch import PolicyFailure

__all__ = [
    "DecisionCost",
    "PolicyConformance",
    "PolicyFailure",
    "PolicyReport",
    "TierConformance",
    "TierFailure",
    "check_cost",
    "check_determinism",
    "check_lives",
    "check_memory",
    "check_policy",
    "check_tier",
]
