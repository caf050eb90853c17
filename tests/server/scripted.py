"""A fake model that says what it is told to, as far as its grammar lets it, and then ends."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from openai_kv.default_plugins.tool_parsers import PARSERS
from openai_kv.outputs import ScheduledRequest
from openai_kv.tokenizer import Tokenizer
from tests.fakes import FakeModelRunner, allowed, fake_info
from tests.harness import Shape
from tests.server.serving import Site, live_site, site
from tests.tiny_tokenizer import CHAT_TEMPLATE, tiny_tokenizer

EOS = 257
SHAPE = Shape(num_blocks=512, block_size=4, max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=2048)
TOOLS_TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT_TEMPLATE
# A line of each family's template by which `auto` knows it.
FAMILIES = {
    "hermes": "{# <tool_call> #}" + TOOLS_TEMPLATE,
    "mistral": "{# [TOOL_CALLS] #}" + TOOLS_TEMPLATE,
    "pythonic": "{# [func_name1(params)] #}" + TOOLS_TEMPLATE,
    "llama3_json": "{# Environment: ipython #}" + TOOLS_TEMPLATE,
    "none": TOOLS_TEMPLATE,
}


class ScriptedRunner(FakeModelRunner):
    """`script`: the output's token ids, whatever the prompt."""

    script: Sequence[int] = ()
    ends: Sequence[int] = ()

    def _draw(self, item: ScheduledRequest, _likeliest: int) -> int:
        """After the script, an end wherever there may be one."""
        index = len(item.output_token_ids)
        if index < len(self.script):
            return allowed(self.script[index], item.constraint)
        if item.constraint is None:
            return EOS
        mask = int.from_bytes(item.constraint.mask(), "little")
        return next((end for end in self.ends if mask >> end & 1), allowed(index % 256, item.constraint))


def scripted_model(tokenizer: Tokenizer, **options: Any) -> dict[str, Any]:
    """What `site` and `live_site` make a server with such a model of."""
    info = fake_info(vocab_size=300, eos_token_ids=frozenset({EOS}), max_model_len=SHAPE.max_model_len)
    runner = ScriptedRunner(SHAPE.num_blocks, SHAPE.block_size, info)
    parsers = tuple(parser() for parser in PARSERS)
    return {"runner": runner, "tokenizer": tokenizer, "tool_parsers": parsers, **options}


@asynccontextmanager
async def scripted(
    text: str, template: str = FAMILIES["hermes"], *, specials: Sequence[str] = (), **options: Any
) -> AsyncIterator[Site]:
    """A server whose model answers `text`."""
    tokenizer = tiny_tokenizer(template, specials)
    async with site(SHAPE, **scripted_model(tokenizer, **options)) as server:
        say(server, text, tokenizer)
        yield server


@asynccontextmanager
async def live_scripted(text: str, template: str = FAMILIES["hermes"]) -> AsyncIterator[tuple[Site, str]]:
    """The same on a socket; also yields the base URL."""
    tokenizer = tiny_tokenizer(template)
    async with live_site(SHAPE, **scripted_model(tokenizer)) as (server, url):
        say(server, text, tokenizer)
        yield server, url


def say(server: Site, text: str, tokenizer: Tokenizer) -> None:
    runner = server.runner.inner
    assert isinstance(runner, ScriptedRunner)
    runner.script = tokenizer.encode(text, add_special_tokens=False)
    runner.ends = [EOS, *tokenizer.encode('"}])', add_special_tokens=False)]
