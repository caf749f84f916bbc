"""Sums of rows, each times its factor: one matrix-vector product for each run of neighbouring rows.

Neighbours only: what lies between two rows that are used may be anything, even NaN.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

Parts = tuple[tuple[int, float], ...]  # numbers of rows in rising order, each with its factor
Single = tuple[Tensor, float]  # one row, and its factor
Product = tuple[Tensor, Tensor, Single | None]  # some rows, transposed, and their factors; the row if it is only one

HALF = (torch.bfloat16, torch.float16)
PLANS = 1000  # are kept; a strategy comes back to the same few


class SlotSums:
    """Knows how to sum up, and makes the views and factors for each combination only once."""

    def __init__(self, matrices: Sequence[Tensor]) -> None:
        self._matrices = matrices  # one for each type of number
        self._plans: dict[Parts, list[list[Product]]] = {}

    def write(self, parts: Parts, into: Sequence[Tensor]) -> None:
        """Leave the sum in vectors, one for each type of number."""
        for products, vector in zip(self._plan(parts), into, strict=True):
            if vector.dtype in HALF:
                vector.copy_(_in_floats(products, torch.zeros_like(vector, dtype=torch.float32)))
                continue
            for number, (rows, factors, _) in enumerate(products):
                torch.addmv(vector, rows, factors, beta=1.0 if number else 0.0, out=vector)
            if not products:
                vector.zero_()

    def add(self, parts: Parts, to: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Add the sum to vectors, and leave the result in others or in the same: the same bits in both.

        Which it is depends on timing (who still reads the weights), so the operations must not: ``torch.add`` and a
        product with a single row round differently on some processors. A product copies the vector first where the
        result is another, and is the same operation in place.
        """
        for products, vector, result in zip(self._plan(parts), to, into, strict=True):
            if vector.dtype in HALF:
                result.copy_(_in_floats(products, vector.float()))
                continue
            so_far = vector
            for rows, factors, single in products:
                if single is not None:
                    torch.add(so_far, single[0], alpha=single[1], out=result)
                else:
                    torch.addmv(so_far, rows, factors, out=result)
                so_far = result

    def _plan(self, parts: Parts) -> list[list[Product]]:
        plan = self._plans.get(parts)
        if plan is None:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            plan = self._plans[parts] = [_products(matrix, parts) for matrix in self._matrices]
        return plan


def _in_floats(products: list[Product], so_far: Tensor) -> Tensor:
    """The sum in single precision: a factor such as 1/3 of half precision would be off by up to 0.4 %."""
    for rows, factors, _ in products:
        so_far = torch.addmv(so_far, rows.float(), factors)
    return so_far


def _products(matrix: Tensor, parts: Parts) -> list[Product]:
    breaks = [i for i, (one, following) in enumerate(pairwise(parts), start=1) if following[0] != one[0] + 1]
    neighbours = [parts[begin:end] for begin, end in pairwise([0, *breaks, len(parts)] if parts else [])]
    return [
        (
            matrix[some[0][0] : some[-1][0] + 1].t(),
            torch.tensor([factor for _, factor in some], dtype=torch.float32 if matrix.dtype in HALF else matrix.dtype),
            (matrix[some[0][0]], some[0][1]) if len(some) == 1 else None,
        )
        for some in neighbours
    ]
