"""Rows of K or V as small integers with scales of their own.

int8: a row is `scale * code`, symmetric. int4: each half of a row, or each channel of a block, is `low + step * code`,
two codes in a byte: numbers i and dim / 2 + i of a row. Scales are rounded to bfloat16 before codes are made for them,
so their rounding adds no error of its own.
"""

import torch
from torch import Tensor

from openai_kv.model_runner.kv_formats import SCALE_DTYPE


def encode(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """rows [..., dim] as codes of `dtype` and their scales: int8 [..., dim] and [..., 1], or uint8 [..., dim / 2] and
    [..., 4], which are step and low of the first half, then of the second."""
    return _encode_int8(rows.float()) if dtype == torch.int8 else _encode_int4(rows.float())


def decode(codes: Tensor, scales: Tensor) -> Tensor:
    """What `encode` made, as float32."""
    return codes * scales.float() if codes.dtype == torch.int8 else _decode_int4(codes, scales.float())


def _encode_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    scales = (rows.abs().amax(-1, keepdim=True) / 127).to(SCALE_DTYPE)
    return _steps(rows, scales).clamp(-127, 127).to(torch.int8), scales


def _encode_int4(rows: Tensor) -> tuple[Tensor, Tensor]:
    halves = rows.unflatten(-1, (2, -1))
    low = halves.amin(-1, keepdim=True).to(SCALE_DTYPE)
    step = ((halves.amax(-1, keepdim=True) - low.float()) / 15).to(SCALE_DTYPE)
    return _pack(_steps(halves - low.float(), step)), torch.cat((step, low), -1).flatten(-2)


def _decode_int4(codes: Tensor, scales: Tensor) -> Tensor:
    halves = torch.stack((codes & 15, codes >> 4), -2)
    pairs = scales.unflatten(-1, (2, 2))
    numbers: Tensor = pairs[..., 1:] + pairs[..., :1] * halves
    return numbers.flatten(-2)


def encode_channels(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """blocks [..., tokens, dim] with a grid for each channel: uint8 [..., tokens, dim / 2], and steps and lows
    [..., 2, dim]. A constant in a channel, however large, costs nothing (KIVI, Liu et al. 2024)."""
    numbers = blocks.float()
    low = numbers.amin(-2, keepdim=True).to(SCALE_DTYPE)
    step = ((numbers.amax(-2, keepdim=True) - low.float()) / 15).to(SCALE_DTYPE)
    halves = _steps(numbers - low.float(), step).unflatten(-1, (2, -1))
    return _pack(halves), torch.cat((step, low), -2)


def decode_channels(codes: Tensor, scales: Tensor) -> Tensor:
    """What `encode_channels` made, as float32."""
    pairs = scales.float()
    return pairs[..., 1:, :] + pairs[..., :1, :] * torch.cat((codes & 15, codes >> 4), -1)


def _pack(halves: Tensor) -> Tensor:
    """halves [..., 2, dim / 2] of whole numbers, two in a byte."""
    first, second = halves.clamp(0, 15).to(torch.uint8).unbind(-2)
    return first | (second << 4)


def _steps(numbers: Tensor, step: Tensor) -> Tensor:
    """To the nearest, halves to even; a step of 0 is that of numbers which are all alike."""
    return torch.where(step > 0, numbers / step.float(), 0).round()
