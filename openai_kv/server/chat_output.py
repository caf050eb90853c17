"""How the output of one chat call is held and read: decided once for all of its choices, in a worker thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_kv.grammar.lark import Lark
from openai_kv.parsing.grammars import OutputGrammar
from openai_kv.parsing.reasoning import CLOSE, OPEN
from openai_kv.parsing.tool_parser import Tool, ToolParser
from openai_kv.request import Grammar
from openai_kv.server.call import Call
from openai_kv.server.structured import PATH, answer_schema, compile_grammar, usable_schema
from openai_kv.server.tool_fields import ToolChoice, tool_choice
from openai_kv.server.violations import unsupported
from openai_kv.tokenizer import Tokenizer

TAIL = 32  # tokens at the end of a prompt that tell whether it ends inside a reasoning section
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ChatOutput:
    """`parser` None: no calls are read. `thinks`: reasoning is told apart; `starts_inside`: the prompt opened it.

    `visible_token_ids`: special tokens whose text has to be read.
    """

    choice: ToolChoice
    parser: ToolParser | None
    one_call: bool
    thinks: bool
    starts_inside: bool
    visible_token_ids: frozenset[int] = frozenset()


def plan_output(call: Call, body: Mapping[str, Any], prompt: Sequence[int]) -> ChatOutput:
    tokenizer = call.context.get_tokenizer()
    choice = tool_choice(body)
    setting = call.context.settings.chat.reasoning_parser
    thinks = setting == "think" or (setting == "auto" and can_think(tokenizer))
    known = choose_parser(call, tokenizer) if "tools" in body else None
    parser = known if choice.mode != "none" else None
    if parser is None and choice.must_call:
        raise unsupported("tool_choice", "No tool parser is known for this model; see chat.tool_parser.")
    inside = thinks and ends_inside(tokenizer, body, prompt)
    markers = (*(known.markers if known else ()), *((OPEN, CLOSE) if thinks else ()))
    visible = frozenset(tokenizer.special_ids[marker] for marker in markers if marker in tokenizer.special_ids)
    return ChatOutput(choice, parser, not body.get("parallel_tool_calls", True), thinks, inside, visible)


def can_think(tokenizer: Tokenizer) -> bool:
    return all(marker in tokenizer.chat_template or tokenizer.has_token(marker) for marker in (OPEN, CLOSE))


def choose_parser(call: Call, tokenizer: Tokenizer) -> ToolParser | None:
    """The configured one, else the first whose mark the chat template holds."""
    parsers = call.context.tool_parsers
    if call.context.settings.chat.tool_parser != "auto":
        return next(iter(parsers), None)
    template = tokenizer.chat_template
    return next((parser for parser in parsers if any(mark in template for mark in parser.template_marks)), None)


def ends_inside(tokenizer: Tokenizer, body: Mapping[str, Any], prompt: Sequence[int]) -> bool:
    """Whether output goes on in a reasoning section that the prompt opened."""
    if body.get("continue_final_message"):
        text = body["messages"][-1]["content"]
        return bool(text.rfind(OPEN) > text.rfind(CLOSE))
    return tokenizer.decode(prompt[-TAIL:], skip_special_tokens=False).rstrip().endswith(OPEN)


def chat_grammar(call: Call, body: Mapping[str, Any], output: ChatOutput) -> Grammar | None:
    """What the output is held to, if to anything. Raises ParameterError for schemas that can't be used."""
    whole = OutputGrammar(Lark(call.context.get_tokenizer().special_ids), output.thinks, output.starts_inside)
    schema = answer_schema(call, body)
    if output.parser is None:
        warn_of_strict(call, body, output.choice)
        return None if schema is None else compile_grammar(call, whole.answer(schema), PATH)
    must_call, marker, many = output.choice.must_call, output.parser.start_marker, not output.one_call
    one = output.choice.mode == "named" or output.one_call
    binds = must_call or schema is not None or bool(marker)
    wants = must_call or schema is not None or output.one_call or any(map(is_strict, body["tools"]))
    if not binds or not wants:
        warn_of_strict(call, body, output.choice)
        return None
    syntax = output.parser.syntax(tools_of(call, body, output.choice), whole.lark)
    if syntax is None:
        raise unsupported("tool_choice", f"The tool parser '{output.parser.name}' can't enforce calls of these tools.")
    if must_call:
        return compile_grammar(call, whole.calls(syntax, marker, many=not one), "tools")
    if schema is not None:
        return compile_grammar(call, whole.answer_or_calls(schema, syntax, marker, many=many), PATH)
    return compile_grammar(call, whole.text_and_calls(syntax, marker, many=many), "tools")


def tools_of(call: Call, body: Mapping[str, Any], choice: ToolChoice) -> list[Tool]:
    """What may be called; arguments of others than strict functions are only bound where a call is asked for."""
    tools = []
    for index, tool in enumerate(body["tools"]):
        function = tool["function"]
        if function["name"] not in choice.names:
            continue
        parameters: Mapping[str, Any] = {}
        if choice.must_call or is_strict(tool):
            path = f"tools[{index}].function.parameters"
            given = function.get("parameters", NO_ARGUMENTS)
            parameters = usable_schema(call, given, path, strict=is_strict(tool))
        tools.append(Tool(function["name"], {**parameters, "type": "object"}))
    return tools


def is_strict(tool: Mapping[str, Any]) -> bool:
    return bool(tool["function"].get("strict", False))


def warn_of_strict(call: Call, body: Mapping[str, Any], choice: ToolChoice) -> None:
    """Of functions that may be called but whose arguments nothing binds."""
    for index, tool in enumerate(body.get("tools", [])):
        if is_strict(tool) and choice.mode != "none":
            call.notes.warnings.append(f"unenforced_strict=tools[{index}]")
