"""Runs the phases of a workload against a client."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from openai_kv.bench.reply import Reply
from openai_kv.bench.workloads import Conversation, Phase

Ask = Callable[[Sequence[dict[str, str]], int], Awaitable[Reply]]


async def run_phase(ask: Ask, phase: Phase, on_reply: Callable[[], None]) -> list[Reply]:
    """The replies of a phase, conversation by conversation."""
    places = asyncio.Semaphore(phase.concurrency)

    async def run(conversation: Conversation) -> list[Reply]:
        async with places:
            return await talk(ask, conversation, on_reply)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(conversation)) for conversation in phase.conversations]
    return [reply for task in tasks for reply in task.result()]


async def talk(ask: Ask, conversation: Conversation, on_reply: Callable[[], None]) -> list[Reply]:
    """A conversation ends at its first failure: what would follow is another conversation."""
    messages = [{"role": "system", "content": conversation.system}] if conversation.system else []
    replies: list[Reply] = []
    for question in conversation.questions:
        messages.append({"role": "user", "content": question})
        replies.append(await ask([*messages], conversation.max_tokens))
        on_reply()
        if replies[-1].error is not None:
            break
        messages.append({"role": "assistant", "content": replies[-1].text})
    return replies
