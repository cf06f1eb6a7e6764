"""
Sums of gradients over the ranks: verified, and unlike those of any other step.

All ranks have the same gradients g. Rank r adds w_r g, and each must get W g, where W is
the sum of all w_r: in a type so wide that this is exact in any order. The weights are drawn
anew for every sum, so a sum of a step or a replay before differs, as does one in which a
share is missing or counts twice. W has as many bits as the wide type has room for beside
those of g, and is odd: so the significand of a sum is full, and lost low bits show.

Training adds up floats. Beside it one group of gradients, another in each step, is added up
as integers: its words times w_r, modulo 2^32, which is exact as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcverify_checks.ranks.rendezvous import RankGroup
from hpcverify_checks.ranks.step_data import draw_bits

if TYPE_CHECKING:
    from torch import Tensor


def draw_weights(seed: int, number: int, world: int, bits: int) -> list[int]:
    """Draw positive weights of the ranks whose sum is odd and has exactly so many *bits*."""
    half = 2 ** (bits - 1)
    drawn = [draw_bits(seed, number, rank) for rank in range(world)]
    whole = half | drawn[0] % half | 1
    others = [1 + word % (half // world) for word in drawn[1:]]
    return [whole - sum(others), *others]


@dataclass(frozen=True, slots=True)
class GradientSum:
    """One sum of the gradients of all ranks, as this rank sees it."""

    gradients: Tensor
    total: Tensor
    """It is as long as the gradients, in a wider type; integers are summed in its memory as
    well."""
    share_weight: int
    sum_weight: int

    @classmethod
    def draw(
        cls, group: RankGroup, rank: int, seed: int, number: int, tensors: tuple[Tensor, Tensor]
    ) -> GradientSum:
        """Draw the weights of sum *number*; *tensors* are the gradients and room for their sum."""
        import torch

        gradients, total = tensors
        room = torch.finfo(gradients.dtype).eps / torch.finfo(total.dtype).eps
        weights = draw_weights(seed, number, group.world, int(math.log2(room)))
        return cls(gradients, total, weights[rank], sum(weights))

    def fill_floats(self) -> Tensor:
        """Fill in what this rank adds to the sum of floats."""
        return self.total.copy_(self.gradients).mul_(self.share_weight)

    def count_wrong_floats(self, parts: Iterable[slice]) -> Tensor:
        """
        Count the wrong elements of the sum of floats, in *parts*, to save memory.

        The sum of what is not a number is none, whatever bits a part gives it.
        """
        import torch

        wrong = torch.zeros((), dtype=torch.int64, device=self.total.device)
        for part in parts:
            expected = self.gradients[part].to(self.total.dtype).mul_(self.sum_weight)
            is_number = self.total[part].isnan().logical_and_(expected.isnan()).logical_not_()
            wrong += torch.count_nonzero((self.total[part] != expected).logical_and_(is_number))
        return wrong

    def fill_integers(self, part: slice) -> Tensor:
        """Fill in what this rank adds to the sum of the words of a *part* of the gradients."""
        words = self._view_words(part)
        return self.total.view(words.dtype)[: len(words)].copy_(words).mul_(self.share_weight)

    def count_wrong_integers(self, summed: Tensor, part: slice) -> Tensor:
        """Count the wrong words of the sum of a *part*."""
        return summed.ne(self._view_words(part) * self.sum_weight).count_nonzero()

    def _view_words(self, part: slice) -> Tensor:
        import torch

        return self.gradients[part].view(torch.int32)
