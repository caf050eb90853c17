"""Lookahead: the step after one that still runs, where that one can't change more than what comes next of each text.

The idea of vLLM's asynchronous scheduling, held to the steps that can be known: all decode, and nobody comes. All other
steps are planned once the one before is taken in, so only here requests are seen that lag behind their rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from openai_kv.cache.manager import KVCacheManager
from openai_kv.drafting.drafter import Drafter
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import Request
from openai_kv.scheduler.queues import RequestQueues
from openai_kv.tiers.tiers import Tiers

UNKNOWN = -1  # a token that is being computed


@dataclass(slots=True)
class PlannedRows:
    """Rows that lack a token each until `fill`: the last of these lists, by request id."""

    requests: list[ScheduledRequest] = field(default_factory=list)
    _open: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)

    def add(self, request: Request, start: int, block_ids: Sequence[int], window_block_ids: Sequence[int]) -> None:
        """The row behind those that run now, at position `start`."""
        tokens, output = [UNKNOWN], [*request.output_token_ids, UNKNOWN]
        self._open[request.request_id] = tokens, output
        row = ScheduledRequest(
            request_id=request.request_id,
            token_ids=tokens,
            num_computed_tokens=start,
            block_ids=block_ids,
            samples=True,
            params=request.params,
            seed=request.seed,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=output,
            choice=request.choice,
            window_block_ids=window_block_ids,
        )
        self.requests.append(row)

    def fill(self, sampled_token_ids: Mapping[str, Sequence[int]]) -> None:
        """The step before has said these."""
        for request_id, (tokens, output) in self._open.items():
            tokens[-1] = output[-1] = sampled_token_ids[request_id][0]


@dataclass(frozen=True, slots=True, eq=False)
class Lookahead:
    """Plans from the rows that run. It takes slots that the requests need next in any case, so a plan may be dropped.

    Whose text ends with the running step, unforeseen, has a row in the plan that is computed in vain: behind its last
    token, in blocks that nobody else is given before a later step, and that step runs later.
    """

    queues: RequestQueues
    manager: KVCacheManager
    drafter: Drafter
    tiers: Tiers
    max_num_seqs: int
    max_model_len: int

    def after(self, running: Sequence[ScheduledRequest]) -> PlannedRows | None:
        """None: who runs next, or what, depends on what these rows say."""
        if self._need_each_token() or len(running) != len(self.queues.running):
            return None
        pairs = [(self.queues.by_id[item.request_id], item) for item in running]
        if not all(_is_simple(request, item) for request, item in pairs):
            return None
        going_on = [(request, item.num_known_tokens) for request, item in pairs if not self._ends(request)]
        may_start = bool(self.queues.waiting) and len(going_on) < self.max_num_seqs
        return None if may_start else self._plan(going_on)

    def _need_each_token(self) -> bool:
        """Drafts, tiers and some policies go by all that was computed so far."""
        return self.drafter.has_sources or bool(self.tiers.threads) or self.manager.needs_attention

    def _ends(self, request: Request) -> bool:
        """With the token that it lacks: its length is known before."""
        too_long = len(request.token_ids) + 1 >= self.max_model_len
        return too_long or request.num_output_tokens + 1 >= request.params.max_tokens

    def _plan(self, going_on: Iterable[tuple[Request, int]]) -> PlannedRows | None:
        manager, plan = self.manager, PlannedRows()
        for request, start in going_on:
            if not manager.allocate_slots(request.request_id, start + 1):
                return None  # somebody has to be preempted
            blocks, parts = manager.block_ids(request.request_id), manager.window_block_ids(request.request_id)
            plan.add(request, start, blocks, parts)
        return plan if plan.requests else None


def _is_simple(request: Request, item: ScheduledRequest) -> bool:
    """It says exactly one token, what may come after that needs no look at it, and that has its block already."""
    is_known = item.samples and not item.num_drafts and request.constraint is None
    return is_known and not _may_lose_tail(request, item)


def _may_lose_tail(request: Request, item: ScheduledRequest) -> bool:
    """With windows the partial end of a prompt may make way for the tree's own, and the next row is written there."""
    return bool(item.window_block_ids) and item.num_computed_tokens < request.num_prompt_tokens
