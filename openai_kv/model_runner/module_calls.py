"""How a model calls the modules that ask for attention, taken down so that the calls can be repeated for other rows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from openai_kv.model_runner.attention.backend import AttentionOptions
from openai_kv.model_runner.attention.interface import STEP, AttentionStep
from openai_kv.model_runner.fused.observe import ObservedStep


@dataclass(frozen=True, slots=True, eq=False)
class ModuleCall:
    """`given`: the first tensor among the arguments, and what was in it; `output`: of those that return a tuple."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    given: tuple[Tensor, Tensor] | None
    output: tuple[Any, ...] = ()

    @property
    def arguments(self) -> list[Any]:
        return [*self.args, *self.kwargs.values()]

    def repeat(self, exchanged: Mapping[int, Any], step: AttentionStep | None = None) -> Any:
        """With other arguments, by the ids of those they replace."""
        args = [exchanged.get(id(value), value) for value in self.args]
        kwargs = {name: exchanged.get(id(value), value) for name, value in self.kwargs.items()}
        return self.module(*args, **kwargs | ({STEP: step} if STEP in kwargs else {}))


@dataclass(slots=True, eq=False)
class CallWatch:
    """An AttentionStep. `asking`: by layer, the innermost call that attention is a part of; `made`: calls that returned
    tuples; `step.calls`: what attention was asked with."""

    step: ObservedStep = field(default_factory=ObservedStep)
    asking: dict[int, ModuleCall] = field(default_factory=dict)
    made: list[ModuleCall] = field(default_factory=list)
    _open: list[ModuleCall] = field(default_factory=list)

    def attend(self, index: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        self.asking[index] = self._open[-1]
        return self.step.attend(index, query, key, value, options)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """While the model runs once."""
        hooks = [module.register_forward_pre_hook(self._enter, with_kwargs=True) for module in model.modules()]
        hooks += [module.register_forward_hook(self._leave) for module in model.modules()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        given = None if first is None else (first, first.clone())  # some are written over
        kept = {name: None if name == STEP else value for name, value in kwargs.items()}
        self._open.append(ModuleCall(module, args, kept, given))

    def _leave(self, module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        call = self._open.pop()
        if isinstance(output, tuple):
            self.made.append(ModuleCall(module, call.args, call.kwargs, call.given, output))
