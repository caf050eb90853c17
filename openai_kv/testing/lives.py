"""Random lives of requests against a real KVCacheManager: all that can happen to a block, in any order."""

from dataclasses import dataclass
from itertools import count
from random import Random

from openai_kv.cache.manager import KVCacheManager
from openai_kv.request import Breakpoint, PinOrder, RequestInfo, Retention
from openai_kv.testing.watch import PolicyFailure, WatchedPolicy

NUM_BLOCKS, BLOCK_SIZE = 24, 4
MAX_TOKENS = 32
MAX_RUNNING = 4
INTEGRITY_EVERY = 16  # steps: it looks at every block
KINDS = ("chat", "completion", "generate")


@dataclass(eq=False)
class Life:
    """A running request."""

    info: RequestInfo
    tokens: list[int]


class Lives:
    """Requests arrive, grow, are preempted and leave; prefixes are pinned, hard or softly; at times all is reset.

    The same seed gives the same lives. Raises PolicyFailure when the policy breaks the contract, IntegrityError when
    the cache's books are wrong.
    """

    def __init__(self, policy: WatchedPolicy, seed: int) -> None:
        self.policy = policy
        self.random = Random(seed)
        self.now = 0.0
        self.manager = KVCacheManager(
            num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, policy=policy, num_hidden_slots=4, clock=lambda: self.now
        )
        self.running: list[Life] = []
        self.texts: list[list[int]] = []
        self.pinned: list[str] = []
        self._numbers = count()

    def run(self, steps: int) -> None:
        actions = (self.arrive, self.grow, self.grow, self.leave, self.preempt, self.pin, self.unpin, self.reset)
        weights = (30, 20, 20, 25, 8, 4, 5, 0.3)
        for step, action in enumerate(self.random.choices(actions, weights, k=steps)):
            self.now += self.random.expovariate(0.1)
            self.manager.expire()
            action()
            self.policy.check()
            if step % INTEGRITY_EVERY == 0:
                self.manager.check_integrity()
        self._end()

    def arrive(self) -> None:
        if len(self.running) == MAX_RUNNING:
            return
        life = Life(self._info(tokens := self._prompt()), tokens)
        if self._admit(life, count=True):
            self.running.append(life)

    def _prompt(self) -> list[int]:
        """Half of the prompts go on where an earlier text was left, or branch off from it."""
        known = self.random.choice(self.texts) if self.texts and self.random.random() < 0.5 else []
        kept = known[: self.random.randint(0, len(known))] if self.random.random() < 0.5 else known
        new = [self.random.randrange(3) for _ in range(self.random.randint(1, 12))]
        return [*kept, *new][:MAX_TOKENS]

    def _info(self, tokens: list[int]) -> RequestInfo:
        session = self.random.choice((None, "a", "b"))
        return RequestInfo(
            request_id=f"r{next(self._numbers)}",
            num_prompt_tokens=len(tokens),
            namespace=self.random.choice(("", "", "salt")),
            session_id=session,
            kind=self.random.choice(KINDS),
            turn=self.random.randint(1, 4),
        )

    def _admit(self, life: Life, *, count: bool) -> bool:
        hit = self.manager.lookup(life.tokens, life.info)
        if self.manager.admit(life.info, hit, len(life.tokens), count=count) is None:
            return False
        self._computed(life)
        return True

    def _computed(self, life: Life) -> None:
        name = life.info.request_id
        self.manager.cache_blocks(name, life.tokens, with_tail=self.random.random() < 0.7)
        self.manager.record_attention({block: self.random.random() for block in self.manager.block_ids(name)})

    def grow(self) -> None:
        if not self.running:
            return
        life = self.random.choice(self.running)
        more = [self.random.randrange(3) for _ in range(self.random.randint(1, 5))]
        tokens = [*life.tokens, *more][:MAX_TOKENS]
        if self.manager.allocate_slots(life.info.request_id, len(tokens)):
            life.tokens = tokens
            self._computed(life)

    def leave(self) -> None:
        if not self.running:
            return
        life = self.running.pop(self.random.randrange(len(self.running)))
        self.manager.cache_blocks(life.info.request_id, life.tokens, with_tail=True)
        self.manager.free(life.info.request_id)
        self.manager.finish(life.info)
        self.texts = [*self.texts[-15:], life.tokens]

    def preempt(self) -> None:
        """It comes back at once, or not at all."""
        if not self.running:
            return
        life = self.random.choice(self.running)
        self.manager.free(life.info.request_id)
        if self.random.random() < 0.5 or not self._admit(life, count=False):
            self.running.remove(life)
            self.manager.finish(life.info)

    def pin(self) -> None:
        """Now and then softly."""
        if not self.texts:
            return
        text, ttl = self.random.choice(self.texts), self.random.uniform(50.0, 500.0)
        if self.random.random() < 0.5:
            soft = Retention(breakpoints=(Breakpoint(self.random.randint(1, len(text)), ttl),))
            self.manager.pins.keep(RequestInfo("soft", len(text), retention=soft), text)
        elif len(self.pinned) < 2:
            hard = Retention(pin=PinOrder(f"pin{next(self._numbers)}", ttl))
            self.manager.pins.keep(RequestInfo("hard", len(text), retention=hard), text)
            self.pinned = [pin.pin_id for pin in self.manager.pins.list()]

    def unpin(self) -> None:
        if self.pinned:
            self.manager.pins.unpin(self.pinned.pop(self.random.randrange(len(self.pinned))))

    def reset(self) -> None:
        self.manager.reset()

    def _end(self) -> None:
        """Everybody leaves; one request that needs every block must get them all."""
        while self.running:
            self.leave()
        while self.pinned:
            self.unpin()
        info = RequestInfo("last", NUM_BLOCKS * BLOCK_SIZE)
        tokens = [7] * info.num_prompt_tokens
        if self.manager.admit(info, self.manager.lookup(tokens, info), len(tokens)) is None:
            raise PolicyFailure(f"{self.policy.name}: not every unused block can be evicted")
        self.manager.free(info.request_id)
        self.manager.finish(info)
        self.policy.check()
        self.manager.check_integrity()
