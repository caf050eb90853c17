"""What of a request is to stay cached: `prompt_cache_options`, breakpoints, `prompt_cache_retention`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openai_kv.request import Breakpoint, Retention
from openai_kv.server.breakpoints import Place
from openai_kv.server.call import Call

MAX_BREAKPOINTS = 4


def retention(call: Call, body: Mapping[str, Any], num_prompt_tokens: int, places: Sequence[Place]) -> Retention:
    """The latest breakpoints; given a ttl, implicit mode has one more at the end of the prompt."""
    options = body.get("prompt_cache_options", {})
    explicit = options.get("mode") == "explicit"
    default = options.get("ttl", default_ttl(call))
    found = sorted(breakpoints(call, places, default), key=lambda each: each.num_tokens)
    kept = found[-MAX_BREAKPOINTS:] if explicit else found[1 - MAX_BREAKPOINTS :]
    if "ttl" in options and not explicit:
        kept.append(Breakpoint(num_prompt_tokens, default))
    return Retention(explicit, tuple(kept), in_memory=body.get("prompt_cache_retention") == "in_memory")


def default_ttl(call: Call) -> int:
    cache = call.context.settings.cache
    return min(cache.ttl_default, cache.ttl_max)


def breakpoints(call: Call, places: Sequence[Place], default: int) -> Iterator[Breakpoint]:
    """Those that have tokens before them; one that the template left out is a warning."""
    for place in places:
        if place.num_tokens is None:
            call.notes.warnings.append(f"unmapped_breakpoint={place.mark.path}")
        elif place.num_tokens:
            yield Breakpoint(place.num_tokens, default if place.mark.ttl is None else place.mark.ttl)
