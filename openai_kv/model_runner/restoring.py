"""K and V of a layer from what the layer takes as input, by the model's own modules. After HCache (Gao et al.)."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from openai_kv.model_runner.attention.backend import AttentionOptions
from openai_kv.model_runner.fused.observe import trial_rows
from openai_kv.model_runner.loader import CausalLM
from openai_kv.model_runner.module_calls import CallWatch, ModuleCall, first_tensor

KeyAndValue = tuple[Tensor, Tensor]


class CantRestoreError(Exception):
    """Why K and V can't be had from the layers' inputs."""


class _Asked(Exception):
    """Attention was asked for: K and V are there, and nobody needs what would follow."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self.found = key, value


class _AskedStep:
    def attend(self, index: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Of any layer."""
        del index, query, options
        raise _Asked(key, value)


@dataclass(frozen=True, slots=True, eq=False)
class Restorer:
    """`layers`: calls of one module for each. They take inputs [1, T, width], `positions`, and what other calls, the
    `rotations`, make of those."""

    layers: tuple[ModuleCall, ...]
    rotations: tuple[ModuleCall, ...]
    positions: Tensor
    width: int
    dtype: torch.dtype

    @classmethod
    @torch.inference_mode()
    def of(cls, model: CausalLM) -> "Restorer":
        """From how the model runs a few tokens. Raises CantRestoreError, and whatever a family's code raises."""
        watch, (token_ids, positions) = CallWatch(), trial_rows(model)
        with watch.on(model.model):
            model.hidden_states(token_ids, positions, watch)
        known = {id(positions), *(id(call.output) for call in watch.made)}
        layers = [_outermost(watch, index, known) for index in range(model.num_layers)]
        arguments = {id(value) for layer in layers for value in layer.arguments}
        rotations = tuple(call for call in watch.made if id(call.output) in arguments)
        return cls(tuple(layers), rotations, positions, *_kind(layers))

    @property
    def token_bytes(self) -> int:
        return len(self.layers) * self.width * self.dtype.itemsize

    def offer(self, take: Callable[[int, Tensor], None]) -> list[RemovableHandle]:
        """From now on `take(layer, inputs)` whatever a layer is called with."""
        return [
            layer.module.register_forward_pre_hook(partial(_offer, take, index), with_kwargs=True)
            for index, layer in enumerate(self.layers)
        ]

    def keys_and_values(self, inputs: Tensor, positions: Tensor) -> Iterator[KeyAndValue]:
        """inputs [layers, T, width] of rows at `positions` [T] int64; yields K and V [T, n_kv_heads, d], by layer."""
        known: dict[int, Any] = {id(self.positions): positions[None]}
        known |= {id(rotation.output): rotation.repeat(known) for rotation in self.rotations}
        for layer, its_inputs in zip(self.layers, inputs, strict=True):
            yield _restore(layer, its_inputs, known)


def _offer(
    take: Callable[[int, Tensor], None], index: int, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    given = first_tensor((*args, *kwargs.values()))
    assert given is not None
    take(index, given)


def _restore(layer: ModuleCall, inputs: Tensor, known: dict[int, Any]) -> KeyAndValue:
    try:
        layer.repeat(known | {id(layer.given): inputs[None]}, _AskedStep())
    except _Asked as asked:
        return asked.found
    raise CantRestoreError(f"{type(layer.module).__name__} does not ask for attention")


def _outermost(watch: CallWatch, index: int, known: Collection[int]) -> ModuleCall:
    """Of the calls that only this layer's attention is a part of, and that take nothing but inputs and what is known.

    The outermost is called however the parts of a layer are put together.
    """
    others = {id(call) for other, calls in watch.asking.items() if other != index for call in calls}
    own = [call for call in watch.asking[index] if id(call) not in others and _has_inputs(call)]
    found = next((call for call in own if not _takes_more(call, known)), None)
    if found is None:
        raise CantRestoreError(f"layer {index} takes more than its input and positions")
    return found


def _has_inputs(call: ModuleCall) -> bool:
    return call.given is not None and call.given.dim() == 3 and call.given.is_floating_point()


def _takes_more(call: ModuleCall, known: Collection[int]) -> bool:
    """Whatever else it takes would be another prompt's."""
    others = [value for value in call.arguments if id(value) not in known and value is not call.given]
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(others))


def _kind(layers: Sequence[ModuleCall]) -> tuple[int, torch.dtype]:
    """Width and type of the inputs."""
    kinds = {(layer.given.shape[2], layer.given.dtype) for layer in layers if layer.given is not None}
    if len(kinds) > 1:
        raise CantRestoreError("layers differ in their inputs")
    return kinds.pop()
