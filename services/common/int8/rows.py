"""Rows of numbers as 8-bit integers with a scale for each row."""

from __future__ import annotations

from typing import Any

import torch

LARGEST = 127
"""−128 is not used, so that the range is as wide on both sides."""
_LEAST = 1e-12


def quantize(rows: Any) -> tuple[Any, Any]:
    """The nearest of 255 even steps between −m and m, where m is the largest magnitude of the row; ties go to the even one.

    Args: rows: [rows, columns], floating.
    Returns: integers [rows, columns] int8, and scales [rows, 1] float32; their product is within half a scale of `rows`. A row
        of zeros has the scale 1e-12 / 127.
    """
    scales = rows.abs().amax(1, keepdim=True).float().clamp_(min=_LEAST) / LARGEST
    return (rows / scales).round_().to(torch.int8), scales
