"""How large a schema becomes once it is a grammar: a few lines can ask for more than any machine has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import lcm
from typing import Any

MAX_STATES = 10_000  # of the automaton that counts for multipleOf; 50 ms
MAX_SIZE = 20_000  # alternatives after schemas that meet in one place are multiplied out; a second
PARTS = frozenset({"anyOf", "$ref", "$defs", "definitions"})


def counting_states(multiples: list[int | float]) -> int:
    """The least common multiple, in units of the last decimal place: one automaton may have to count for all."""
    decimals = [Decimal(repr(multiple)) for multiple in multiples]
    places = max((-int(decimal.as_tuple().exponent) for decimal in decimals), default=0)
    return lcm(*(max(1, int(decimal.scaleb(max(places, 0)))) for decimal in decimals))


@dataclass(slots=True)
class Measure:
    """Sizes of schemas within `root`. Where `anyOf`, `$ref` and others meet, each is crossed with each."""

    root: Mapping[str, Any]
    visiting: set[str] = field(default_factory=set)

    def size(self, schema: Any) -> int:
        if not isinstance(schema, Mapping):
            return 1
        branches = sum(map(self.size, schema.get("anyOf", []))) or 1
        rest = {name: value for name, value in schema.items() if name not in PARTS}
        crossed = min(branches * self.plain(rest), MAX_SIZE + 1)
        meets = "$ref" in schema and len(schema.keys() - {"$ref", "$defs", "definitions"}) > 0
        return min(crossed * (self.target(schema["$ref"]) if meets else 1), MAX_SIZE + 1)

    def total(self) -> int:
        """Of the root and of whatever it defines."""
        definitions = [*self.root.get("$defs", {}).values(), *self.root.get("definitions", {}).values()]
        return sum(map(self.size, [self.root, *definitions]))

    def plain(self, schema: Mapping[str, Any]) -> int:
        inner = [*schema.get("properties", {}).values(), *schema.get("prefixItems", [])]
        inner += [schema[name] for name in ("items", "additionalProperties") if name in schema]
        return 1 + sum(map(self.size, inner))

    def target(self, reference: str) -> int:
        """What a reference leads to; once around a circle is enough, and what leads nowhere is for the compiler."""
        if reference in self.visiting:
            return 1
        self.visiting.add(reference)
        size = self.size(self.find(reference))
        self.visiting.discard(reference)
        return size

    def find(self, reference: str) -> Any:
        found: Any = self.root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found
