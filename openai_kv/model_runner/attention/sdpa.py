"""Portable attention with torch's scaled_dot_product_attention: the reference, and the fallback everywhere."""

import torch
import torch.nn.functional as F
from torch import Tensor

from openai_kv.model_runner.attention.backend import AttentionOptions, LayerCache
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.attention.pieces import Piece, cut


class SdpaBackend:
    """Gathers each request's blocks. Query heads that share a K/V head are laid side by side as rows, so no copy of
    K and V per query head is made, and no kernel has to know about grouped queries."""

    name = "sdpa"
    replayable = False

    def __init__(self) -> None:
        self._metadata: AttentionMetadata | None = None
        self._pieces: dict[int | None, list[Piece]] = {}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layer: LayerCache,
        metadata: AttentionMetadata,
        options: AttentionOptions,
        mass: Tensor | None,
    ) -> Tensor:
        key = write(layer.key, key, metadata.slot_mapping)
        value = write(layer.value, value, metadata.slot_mapping)
        plain = options.softcap is None and options.sinks is None and mass is None
        if plain and _is_fresh_prompt(metadata, options):
            return _causal(query, key, value, options.scale)
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for piece in self._cut(metadata, layer.block_size, options.sliding_window):
            packed = _pack(query[piece.rows], piece, key.shape[1])
            keys, values = (gather(blocks, piece).to(query.dtype) for blocks in (layer.key, layer.value))
            if plain:
                attended = _sdpa(packed, keys, values, piece, options.scale)
            else:
                attended = _eager(packed, keys, values, piece, options, mass)
            output[piece.rows] = _unpack(attended, piece, query.shape[1])
        return output

    def _cut(self, metadata: AttentionMetadata, block_size: int, window: int | None) -> list[Piece]:
        """The same for all layers of a step, so kept for as long as the step lasts."""
        if metadata is not self._metadata:
            self._metadata, self._pieces = metadata, {}
        if window not in self._pieces:
            self._pieces[window] = cut(metadata, block_size, window)
        return self._pieces[window]


def write(blocks: Tensor, rows: Tensor, slot_mapping: Tensor) -> Tensor:
    """rows [T, heads, dim] go to the slots [T] of blocks [num_blocks, heads, block_size, dim]; as they read there."""
    block_size, written = blocks.shape[2], rows.to(blocks.dtype)
    blocks[slot_mapping // block_size, :, slot_mapping % block_size] = written
    return written.to(rows.dtype)


def gather(blocks: Tensor, piece: Piece) -> Tensor:
    """The piece's keys or values [B, heads, L, dim], in one pass over the data."""
    num_heads, block_size, dim = blocks.shape[1:]
    heads = torch.arange(num_heads, device=blocks.device)
    index = piece.block_ids[:, None, :] * num_heads + heads[None, :, None]
    chosen = blocks.view(-1, block_size * dim).index_select(0, index.flatten())
    chosen = chosen.view(index.shape[0], num_heads, -1, dim)
    # What another request left behind is masked, but still takes part as 0 * x, and x may be inf or nan.
    requests, unseen = piece.unseen
    chosen[requests, :, unseen] = 0
    return chosen


def _is_fresh_prompt(metadata: AttentionMetadata, options: AttentionOptions) -> bool:
    """One whole prompt, nothing cached, inside the window: plain causal attention over the rows at hand."""
    if metadata.query_lens != metadata.contexts or len(metadata.contexts) != 1:
        return False
    return options.sliding_window is None or metadata.contexts[0] <= options.sliding_window


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    return attended[0].transpose(0, 1)


def _pack(query: Tensor, piece: Piece, num_kv_heads: int) -> Tensor:
    """[B * q, heads, d] -> [B, kv_heads, group * q, d]"""
    batch, length = piece.visible.shape[:2]
    query = query.view(batch, length, num_kv_heads, -1, query.shape[-1])
    return query.permute(0, 2, 3, 1, 4).flatten(2, 3)


def _unpack(attended: Tensor, piece: Piece, num_heads: int) -> Tensor:
    """[B, kv_heads, group * q, d] -> [B * q, heads, d]"""
    batch, length = piece.visible.shape[:2]
    attended = attended.reshape(batch, num_heads, length, attended.shape[-1])
    return attended.transpose(1, 2).flatten(0, 1)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, piece: Piece, scale: float) -> Tensor:
    group = query.shape[2] // piece.visible.shape[1]
    visible = piece.visible.repeat(1, group, 1)[:, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)


def _eager(
    query: Tensor, key: Tensor, value: Tensor, piece: Piece, options: AttentionOptions, mass: Tensor | None
) -> Tensor:
    """The textbook form in float32, for what the fused kernels don't do; adds to `mass` if it is wanted."""
    scores = (query.float() @ key.float().transpose(2, 3)) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    group = query.shape[2] // piece.visible.shape[1]
    scores = scores.masked_fill(~piece.visible.repeat(1, group, 1)[:, None], float("-inf"))
    weights = _softmax(scores, options.sinks, piece)
    if mass is not None:
        per_key = weights.sum((1, 2)) * piece.weights[:, None]
        mass.index_add_(0, piece.block_ids.flatten(), per_key.view(piece.block_ids.numel(), -1).sum(1))
    return (weights @ value.float()).to(value.dtype)


def _softmax(scores: Tensor, sinks: Tensor | None, piece: Piece) -> Tensor:
    """scores [B, kv_heads, group * q, L]; a sink [heads] is one more logit, whose weight falls on nothing."""
    if sinks is None:
        return scores.softmax(-1)
    length = piece.visible.shape[1]
    per_row = sinks.float().view(scores.shape[1], -1).repeat_interleave(length, 1)
    column = per_row[None, :, :, None].expand(scores.shape[0], -1, -1, -1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]
