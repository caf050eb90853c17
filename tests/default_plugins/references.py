"""Caches written straight from the papers, with lists and scans: slow, and easy to see through."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol


class Reference(Protocol):
    """A cache of `capacity` contents."""

    evicted: list[int]

    def request(self, content: int) -> None: ...


class Fifo:
    def __init__(self, capacity: int) -> None:
        self.capacity, self.queue = capacity, list[int]()
        self.evicted: list[int] = []

    def request(self, content: int) -> None:
        if content in self.queue:
            return
        if len(self.queue) == self.capacity:
            self.evicted.append(self.queue.pop(0))
        self.queue.append(content)


class Ranked:
    """The smallest (value, time of the latest touch) goes; the value is set at each touch."""

    def __init__(self, capacity: int, value: Callable[[float, int], float]) -> None:
        self.capacity, self.value = capacity, value
        self.age, self.now = 0.0, 0
        self.touches: Counter[int] = Counter()
        self.rank: dict[int, tuple[float, int]] = {}
        self.evicted: list[int] = []

    def request(self, content: int) -> None:
        self.now += 1
        if content not in self.rank and len(self.rank) == self.capacity:
            victim = min(self.rank, key=self.rank.__getitem__)
            self.age = self.rank.pop(victim)[0]
            del self.touches[victim]
            self.evicted.append(victim)
        self.touches[content] += 1
        self.rank[content] = (self.value(self.age, self.touches[content]), self.now)


def lfu(capacity: int) -> Ranked:
    return Ranked(capacity, lambda age, touches: touches)


def lfu_da(capacity: int) -> Ranked:
    return Ranked(capacity, lambda age, touches: age + touches)


class Slru:
    def __init__(self, capacity: int) -> None:
        self.capacity, self.probation, self.protected = capacity, list[int](), list[int]()
        self.evicted: list[int] = []

    def request(self, content: int) -> None:
        if content in self.probation or content in self.protected:
            (self.probation if content in self.probation else self.protected).remove(content)
            self.protected.append(content)
            if len(self.protected) > self.capacity // 2:
                self.probation.append(self.protected.pop(0))
            return
        if len(self.probation) + len(self.protected) == self.capacity:
            self.evicted.append((self.probation or self.protected).pop(0))
        self.probation.append(content)


class Sieve:
    """The head, where contents enter, is the end of the list; from there the hand goes back to the start."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.queue, self.visited = capacity, list[int](), set[int]()
        self.hand = 0
        self.evicted: list[int] = []

    def request(self, content: int) -> None:
        if content in self.queue:
            self.visited.add(content)
            return
        if len(self.queue) == self.capacity:
            self._evict()
        self.queue.append(content)

    def _evict(self) -> None:
        while self.queue[self.hand] in self.visited:
            self.visited.remove(self.queue[self.hand])
            self.hand = (self.hand + 1) % len(self.queue)
        self.evicted.append(self.queue.pop(self.hand))
        self.hand %= len(self.queue)


class S3Fifo:
    def __init__(self, capacity: int) -> None:
        self.capacity, self.share = capacity, max(1, capacity // 10)
        self.small, self.main, self.ghost = list[int](), list[int](), list[int]()
        self.count: dict[int, int] = {}
        self.evicted: list[int] = []

    def request(self, content: int) -> None:
        if content in self.count:
            self.count[content] = min(3, self.count[content] + 1)
            return
        if len(self.count) == self.capacity:
            self._evict()
        self.count[content] = 0
        if content in self.ghost:
            self.ghost.remove(content)
            self.main.append(content)
        else:
            self.small.append(content)

    def _evict(self) -> None:
        while len(self.small) >= self.share:
            oldest = self.small.pop(0)
            if self.count[oldest] <= 1:
                self.ghost = [*self.ghost, oldest][-(self.capacity - self.share) :]
                return self._drop(oldest)
            self.count[oldest] = 0
            self.main.append(oldest)
        while self.count[oldest := self.main.pop(0)]:
            self.count[oldest] -= 1
            self.main.append(oldest)
        return self._drop(oldest)

    def _drop(self, content: int) -> None:
        del self.count[content]
        self.evicted.append(content)


class Arc:
    """Case by case as in figure 4 of the paper, with integer steps."""

    def __init__(self, capacity: int) -> None:
        self.c, self.p = capacity, 0
        self.t1, self.t2, self.b1, self.b2 = list[int](), list[int](), list[int](), list[int]()
        self.evicted: list[int] = []

    def request(self, x: int) -> None:
        if x in self.t1 or x in self.t2:
            (self.t1 if x in self.t1 else self.t2).remove(x)
            self.t2.append(x)
        elif x in self.b1:
            self.p = min(self.c, self.p + max(1, len(self.b2) // len(self.b1)))
            self._replace(False)
            self.b1.remove(x)
            self.t2.append(x)
        elif x in self.b2:
            self.p = max(0, self.p - max(1, len(self.b1) // len(self.b2)))
            self._replace(True)
            self.b2.remove(x)
            self.t2.append(x)
        else:
            self._make_room()
            self.t1.append(x)

    def _make_room(self) -> None:
        total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
        if len(self.t1) + len(self.b1) == self.c:
            if len(self.t1) < self.c:
                self.b1.pop(0)
                self._replace(False)
            else:
                self.evicted.append(self.t1.pop(0))
        elif total >= self.c:
            if total == 2 * self.c:
                self.b2.pop(0)
            self._replace(False)

    def _replace(self, in_b2: bool) -> None:
        if self.t1 and (len(self.t1) > self.p or (in_b2 and len(self.t1) == self.p)):
            self.b1.append(self.t1.pop(0))
            self.evicted.append(self.b1[-1])
        else:
            self.b2.append(self.t2.pop(0))
            self.evicted.append(self.b2[-1])
