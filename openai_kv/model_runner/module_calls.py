"""How a model calls the modules that attention is a part of, taken down so that it can be done again for other rows."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from openai_kv.model_runner.attention.backend import AttentionOptions
from openai_kv.model_runner.attention.interface import STEP, AttentionStep
from openai_kv.model_runner.fused.observe import ObservedStep


def first_tensor(arguments: Iterable[Any]) -> Tensor | None:
    return next((value for value in arguments if isinstance(value, Tensor)), None)


@dataclass(frozen=True, slots=True, eq=False)
class ModuleCall:
    """`output`: of those that return a tuple."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: tuple[Any, ...] = ()

    @property
    def arguments(self) -> list[Any]:
        return [*self.args, *self.kwargs.values()]

    @property
    def given(self) -> Tensor | None:
        """The first tensor among the arguments."""
        return first_tensor(self.arguments)

    def repeat(self, exchanged: Mapping[int, Any], step: AttentionStep | None = None) -> Any:
        """With other arguments, by the ids of those they replace."""
        args = [exchanged.get(id(value), value) for value in self.args]
        kwargs = {name: exchanged.get(id(value), value) for name, value in self.kwargs.items()}
        return self.module(*args, **kwargs | ({STEP: step} if STEP in kwargs else {}))


@dataclass(slots=True, eq=False)
class CallWatch:
    """An AttentionStep. `asking`: by layer, the calls that its attention is a part of, the innermost last; `made`:
    calls that returned tuples."""

    step: ObservedStep = field(default_factory=ObservedStep)
    asking: dict[int, list[ModuleCall]] = field(default_factory=dict)
    made: list[ModuleCall] = field(default_factory=list)
    _open: list[ModuleCall] = field(default_factory=list)

    def attend(self, index: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        self.asking[index] = [*self._open]
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
        kept = {name: None if name == STEP else value for name, value in kwargs.items()}
        self._open.append(ModuleCall(module, args, kept))

    def _leave(self, module: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        call = self._open.pop()
        if isinstance(output, tuple):
            self.made.append(ModuleCall(module, call.args, call.kwargs, output))
