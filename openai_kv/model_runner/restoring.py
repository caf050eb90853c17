"""K and V of a layer from what its attention takes as input, by the model's own modules. After HCache (Gao et al.)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from openai_kv.model_runner.attention.backend import AttentionOptions
from openai_kv.model_runner.fused.agreement import relative_difference
from openai_kv.model_runner.fused.observe import FIRST_POSITION, NUM_TOKENS
from openai_kv.model_runner.loader import CausalLM, one_line
from openai_kv.model_runner.module_calls import CallWatch, ModuleCall

TOLERANCE = 1e-5  # relative, in float32, where another order of a sum makes about 1e-6; in 16 bits their precision
KeyAndValue = tuple[Tensor, Tensor]


class CantRestoreError(Exception):
    """Why K and V can't be had from the inputs."""


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
    """`layers`: calls of the modules that ask for attention. They take inputs, `positions`, and what `rotations`, other
    calls, make of those."""

    layers: tuple[ModuleCall, ...]
    rotations: tuple[ModuleCall, ...]
    positions: Tensor

    @classmethod
    @torch.inference_mode()
    def of(cls, model: CausalLM, *, exact: bool = False) -> "Restorer":
        """Tried out on a made-up prompt; `exact`: bit by bit. Raises CantRestoreError."""
        try:
            return _find(model, exact)
        except CantRestoreError:
            raise
        except Exception as error:  # whatever a family's code raises that is called in a way it doesn't expect
            raise CantRestoreError(one_line(error)) from error

    @property
    def width(self) -> int:
        return _given(self.layers[0]).shape[2]

    @property
    def dtype(self) -> torch.dtype:
        return _given(self.layers[0]).dtype

    @property
    def token_bytes(self) -> int:
        return len(self.layers) * self.width * self.dtype.itemsize

    def keys_and_values(self, inputs: Tensor, positions: Tensor) -> Iterator[KeyAndValue]:
        """inputs [layers, T, width] of rows at `positions` [T] int64; yields K and V [T, n_kv_heads, d], by layer."""
        known: dict[int, Any] = {id(self.positions): positions[None]}
        known |= {id(rotation.output): rotation.repeat(known) for rotation in self.rotations}
        for layer, its_inputs in zip(self.layers, inputs, strict=True):
            yield _restore(layer, its_inputs, known)


def _restore(layer: ModuleCall, inputs: Tensor, known: dict[int, Any]) -> KeyAndValue:
    try:
        layer.repeat(known | {id(_argument(layer)): inputs[None]}, _AskedStep())
    except _Asked as asked:
        return asked.found
    raise CantRestoreError("a layer does not ask for attention")


def _find(model: CausalLM, exact: bool) -> Restorer:
    watch, device = CallWatch(), model.model.device
    token_ids = torch.arange(NUM_TOKENS, device=device)[None] * 37 % int(model.text_config.vocab_size)
    positions = torch.arange(FIRST_POSITION, FIRST_POSITION + NUM_TOKENS, device=device)
    handed = positions[None]
    with watch.on(model.model):
        model.hidden_states(token_ids, handed, watch)
    layers = tuple(watch.asking[index] for index in range(model.num_layers))
    arguments = {id(value) for layer in layers for value in layer.arguments}
    restorer = Restorer(layers, tuple(call for call in watch.made if id(call.output) in arguments), handed)
    _check_arguments(restorer)
    made = [watch.step.calls[index].tensors[1:] for index in range(model.num_layers)]
    _check_results(restorer, positions, made, exact)
    return restorer


def _check_arguments(restorer: Restorer) -> None:
    """Whatever else a layer takes would be another prompt's."""
    known = {id(restorer.positions), *(id(rotation.output) for rotation in restorer.rotations)}
    for layer in restorer.layers:
        others = [value for value in layer.arguments if id(value) not in known | {id(_argument(layer))}]
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(others)):
            raise CantRestoreError(f"{type(layer.module).__name__} takes more than its input and positions")
    if len({(_given(layer).shape, _given(layer).dtype) for layer in restorer.layers}) > 1:
        raise CantRestoreError("layers differ in their inputs")


def _check_results(restorer: Restorer, positions: Tensor, made: Sequence[Sequence[Tensor]], exact: bool) -> None:
    """All rows, and the last few alone: a row's K and V are to depend on nothing but that row."""
    inputs = torch.cat([_given(layer) for layer in restorer.layers])
    for rows in (slice(None), slice(NUM_TOKENS // 2, None)):
        restored = restorer.keys_and_values(inputs[:, rows], positions[rows])
        for actual, expected in zip(restored, made, strict=True):
            for pair in zip(actual, expected, strict=True):
                _check_equal(pair[0], pair[1][rows], exact)


def _check_equal(actual: Tensor, expected: Tensor, exact: bool) -> None:
    difference = relative_difference(actual, expected)
    limit = max(TOLERANCE, torch.finfo(expected.dtype).eps)
    if not difference <= limit or (exact and not torch.equal(actual, expected)):
        raise CantRestoreError(f"what is restored differs by {difference:.1e}")


def _argument(call: ModuleCall) -> Tensor:
    """What the module was handed, to be recognized by its identity."""
    if call.given is None:
        raise CantRestoreError(f"{type(call.module).__name__} takes no tensor")
    return call.given[0]


def _given(call: ModuleCall) -> Tensor:
    """[1, T, width], what was in it."""
    _argument(call)
    assert call.given is not None
    if call.given[1].dim() != 3:
        raise CantRestoreError(f"{type(call.module).__name__} takes {call.given[1].dim()} dimensions")
    return call.given[1]
