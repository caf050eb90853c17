"""Whether a stand-in computes what the original does."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from openai_kv.model_runner.fused.fusions import Build
from openai_kv.model_runner.fused.linear import is_linear
from openai_kv.model_runner.fused.observe import Call, ObservedStep

STRICT = 5e-5  # relative difference in float32, where another order of a sum makes about 1e-6
COARSE = 2e-2  # in bfloat16, where each rounding makes up to 4e-3


@dataclass(frozen=True, slots=True, eq=False)
class _Results:
    """What a module returned, perhaps first in a tuple, and what it handed to attention."""

    in_tuple: bool
    tensors: list[Tensor]


@dataclass(slots=True, eq=False)
class Agreement:
    """Compares on what the original was called with in the model.

    Subtle differences (another GELU) show in float32 only, but copies in float32 are large: one of each kind is made,
    and none of a linear layer, which is either right or far off.
    """

    step: ObservedStep
    _sure: set[object] = field(default_factory=set)  # kinds that agreed in float32

    def best(self, module: nn.Module, call: Call, builds: Sequence[Build]) -> nn.Module | None:
        """What of `builds` comes closest; None if none is close enough."""
        best, least = None, STRICT if _dtype(module) == torch.float32 else COARSE
        for number, build in enumerate(builds):
            if self._agrees_in_float32(number, module, call, build):
                built = build(module)
                difference = self._difference(module, built, call)
                if difference < least:
                    best, least = built, difference
        return best

    def _agrees_in_float32(self, number: int, module: nn.Module, call: Call, build: Build) -> bool:
        kind = (number, type(module), tuple(parameter.shape for parameter in module.parameters()))
        if kind not in self._sure and not is_linear(module):
            wide = copy.deepcopy(module).float()
            if self._difference(wide, build(wide), call.in_float32()) > STRICT:
                return False
            self._sure.add(kind)
        return True

    def _difference(self, original: nn.Module, stand_in: nn.Module, call: Call) -> float:
        """The largest, relative, of what is returned and of what is handed to attention.

        Infinite if only one of them returns a tuple: who calls it would take something else out of it.
        """
        expected, actual = self._results(original, call), self._results(stand_in, call)
        if expected.in_tuple != actual.in_tuple:
            return float("inf")
        return max(relative_difference(*pair) for pair in zip(actual.tensors, expected.tensors, strict=True))

    def _results(self, module: nn.Module, call: Call) -> _Results:
        self.step.calls.clear()
        output: Any = module(*call.args, **call.kwargs)
        handed = [tensor for call in self.step.calls.values() for tensor in call.tensors]
        in_tuple = isinstance(output, tuple)
        return _Results(in_tuple, [output[0] if in_tuple else output, *handed])


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """By the Euclidean norm; infinite if the shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    return float((actual.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-12))


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype
