"""Puts faster modules into a model where they compute the same; what has no such stand-in stays as it is."""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from openai_kv.model_runner.fused import fusions
from openai_kv.model_runner.fused.agreement import Agreement
from openai_kv.model_runner.fused.forward import fuse_forward
from openai_kv.model_runner.fused.layer import join_layers
from openai_kv.model_runner.fused.linear import DTYPES, PackedEmbedding, PackedLinear
from openai_kv.model_runner.fused.observe import Observation, observe
from openai_kv.model_runner.loader import CausalLM, one_line
from openai_kv.model_runner.probe import refusing

logger = logging.getLogger(__name__)

PASSES = (fusions.layers, fusions.norms, fusions.attentions, fusions.mlps, fusions.linears)


@torch.no_grad()
def optimize(model: CausalLM, brgemm_rows: int = 0) -> CausalLM:
    """Exchange modules of `model`, which lies on the CPU, in place; use what is returned instead of it.

    Weights are packed once, and the original ones let go one module after the other. Each stand-in is compared with
    the original first, and one that differs is not put in; a line in the log says so. The operators must be loaded.
    `brgemm_rows`: see operators.packed_linear. Raises ModelLoadError if the model can't be run.
    """
    if model.model.dtype not in DTYPES:
        return model
    with refusing(model):
        exchange = _Exchange(model.model, observe(model))
    for fusion in PASSES:
        exchange.run(fusion)
    exchange.run_tied()
    fuse_forward(model)
    for module in model.model.modules():
        if isinstance(module, PackedLinear):
            module.brgemm_rows = brgemm_rows
    _let_go_of_files(model.model)
    join_layers(model.model)
    exchange.report()
    return CausalLM.wrap(model.model)


@dataclass(slots=True, eq=False)
class _Exchange:
    """`done` and `left` count modules by their class."""

    root: nn.Module
    observation: Observation
    agreement: Agreement = field(init=False)
    done: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.agreement = Agreement(self.observation.step)

    def run(self, fusion: fusions.Fusion) -> None:
        tied = {id(embedding.weight) for embedding in self._all(nn.Embedding).values()}
        for name, module in list(self.root.named_modules()):
            if name in self.observation.calls and id(getattr(module, "weight", None)) not in tied:
                self._exchange(name, module, fusion)

    def _exchange(self, name: str, module: nn.Module, fusion: fusions.Fusion) -> None:
        builds = list(fusion(module, self.observation.attention))
        if builds:
            found = self._try(name, module, builds)
            counter = self.left if found is None else self.done
            counter[type(module).__name__] += 1
            if found is not None:
                self.root.set_submodule(name, found)

    def _try(self, name: str, module: nn.Module, builds: list[fusions.Build]) -> nn.Module | None:
        try:
            return self.agreement.best(module, self.observation.calls[name], builds)
        except Exception as error:  # whatever a family's code raises that was not made for this
            logger.debug("%s stays as it is: %s", name, one_line(error))
            return None

    def run_tied(self) -> None:
        """A head and an embedding that share one matrix share one packed matrix, too."""
        for name, embedding in self._all(nn.Embedding).items():
            heads = {key: linear for key, linear in self._all(nn.Linear).items() if linear.weight is embedding.weight}
            if len(heads) == 1 and name in self.observation.calls:
                self._exchange_tied(name, embedding, *heads.popitem())

    def _exchange_tied(self, name: str, embedding: Any, head_name: str, head: nn.Module) -> None:
        packed = self._try(head_name, head, [lambda layer: PackedLinear([layer])])
        if not isinstance(packed, PackedLinear):
            return
        stand_in = PackedEmbedding(packed, getattr(embedding, "embed_scale", None))
        call = self.observation.calls[name]
        if torch.equal(stand_in(*call.args), embedding(*call.args)):
            self.root.set_submodule(name, stand_in)
            self.root.set_submodule(head_name, packed)
            self.done[type(head).__name__] += 1

    def _all(self, kind: type[Any]) -> dict[str, Any]:
        return {name: module for name, module in self.root.named_modules() if isinstance(module, kind)}

    def report(self) -> None:
        if self.left:
            logger.warning("left as they were, having come out differently: %s", _counts(self.left))
        logger.info("packed and fused: %s", _counts(self.done))


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items())) or "nothing"


def _let_go_of_files(root: nn.Module) -> None:
    """A tensor that is a part of a file keeps all of it mapped: the few that are left get memory of their own."""
    for tensor in (*root.parameters(), *root.buffers()):
        if tensor.untyped_storage().nbytes() > tensor.nbytes:
            tensor.data = tensor.data.clone()
