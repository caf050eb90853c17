"""Text for prompts: common words, always the same ones for the same seed and key."""

import random
from dataclasses import dataclass

# Frequent nouns: with the space before it each is a single token in most vocabularies.
WORDS = """time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city name president team minute idea kid body information back parent
face others level office door health person art war history party result change morning reason research girl guy
moment air teacher force education foot boy age policy music process market sense nation plan college interest death
experience effect use class control care field role effort rate heart drug show leader light voice wife whole police
mind price report decision son view relationship town road arm difference value building action season society tax
director position player record paper space ground form event matter center couple site project activity star table
need court oil situation cost industry figure street image phone data picture practice piece land product doctor wall
patient worker news test movie north love support""".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Writer:
    """Another `seed` makes text that a server which was asked before has not seen."""

    seed: str

    def words(self, count: int, *key: object) -> str:
        return " ".join(random.Random(repr((self.seed, key))).choices(WORDS, k=count))
