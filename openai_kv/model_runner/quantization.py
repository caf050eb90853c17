"""Formats of weights in fewer bits, and what a matrix takes in them."""

from dataclasses import dataclass

PANEL = 32  # columns that are kept together; a matrix is filled up to a multiple of it


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Every `group` weights of a column have `constants` bytes of scales beside `bits` each (csrc/quantized.h)."""

    bits: int
    group: int
    constants: int

    def nbytes(self, columns: int, depth: int) -> int:
        columns, groups = -(-columns // PANEL) * PANEL, -(-depth // self.group)
        return columns * groups * (self.group * self.bits // 8 + self.constants)


INT8 = WeightFormat(8, 32, 2)
INT4 = WeightFormat(4, 32, 4)


def weight_format(quantization: str, *, is_head: bool) -> WeightFormat:
    """Of a matrix under `quantization`, int8 or int4. The head is int8 in both: see docs/fast.md."""
    return INT4 if quantization == "int4" and not is_head else INT8
