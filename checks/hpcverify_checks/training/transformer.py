"""
A small transformer in which every parameter and every gradient has a fixed place.

It has the parts of a language model: embeddings, attention with an explicit softmax,
layer norms, a perceptron with GELU, cross entropy. Nothing in it is fused or chosen at
run time, there is no dropout, and every operation is deterministic by the list in
``torch.use_deterministic_algorithms``: the same input on the same part with the same
libraries gives the same bits.

All parameters are in one flat tensor, and all gradients in another, so that the
optimizer, the sum over ranks and the digests run over a few long rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from hpcverify_checks.common.bits import make_integers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGN_ELEMENTS = 64
"""Each parameter begins on a cache line, so that a library that treats unaligned data
differently has no choice."""
WEIGHT_LEVELS, WEIGHT_UNIT = 2**15 - 1, 2.0**-20
"""The initial weights are integers within +- the first, times the second: exact, with a
standard deviation of 0.018 (GPT-2 had 0.02)."""
ROWS_PER_BLOCK = 2**16
"""Rows of `ALIGN_ELEMENTS` weights made at a time, in 64-bit integers."""
MASKED_SCORE = -1e9

Multiply = Callable[["Tensor", "Tensor"], "Tensor"]
"""Makes every matrix product of the model; tests inject faulty ones."""
Positive = Annotated[int, Meta(ge=1)]


class ModelShape(Struct, frozen=True, forbid_unknown_fields=True):
    """The size of the model and of one batch."""

    hidden: Positive
    """A multiple of *heads*."""
    layers: Positive
    heads: Positive
    sequence: Positive
    """Tokens in a sequence."""
    batch: Positive
    """Sequences in a step."""
    vocabulary: Positive

    def __post_init__(self) -> None:
        """Refuse a size that cannot be split between the heads."""
        if self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is not a multiple of heads = {self.heads}")

    @property
    def tokens(self) -> int:
        """Tokens in a step."""
        return self.sequence * self.batch

    @property
    def matmul_parameters(self) -> int:
        """Parameters that take part in matrix products: not the embeddings."""
        return 12 * self.layers * self.hidden**2 + self.vocabulary * self.hidden

    @property
    def operations(self) -> float:
        """
        Floating-point operations of the products of a step, forward and backward.

        6 for each parameter and token, and 12 x layers x hidden x sequence for each
        token's attention (Chowdhery and others, PaLM, arXiv 2204.02311, appendix B;
        the same as Korthikanti and others, arXiv 2205.05198, appendix A).
        """
        attention = 12 * self.layers * self.hidden * self.sequence
        return float(self.tokens * (6 * self.matmul_parameters + attention))

    def estimate_activations(self, width: int) -> int:
        """
        Estimate an upper bound on the bytes that a step keeps for its backward pass.

        For each layer twice the s b h (34 + 5 a s / h) of arXiv 2205.05198, section
        4.1, which counts elements of two bytes and a softmax of the same; and the
        logits with their copies and gradients. *width* is the bytes of an element.
        """
        layer = 34 + 5 * self.heads * self.sequence / self.hidden
        kept = width * self.layers * self.tokens * self.hidden * layer
        return int(kept) + 16 * self.tokens * self.vocabulary


def list_parameters(shape: ModelShape) -> dict[str, dict[str, tuple[int, ...]]]:
    """List the parameters' names and sizes, by the groups that are digested."""
    hidden, norm = shape.hidden, {"gain": (shape.hidden,), "bias": (shape.hidden,)}
    groups: dict[str, dict[str, tuple[int, ...]]] = {
        "embedding": {"tokens": (shape.vocabulary, hidden), "places": (shape.sequence, hidden)}
    }
    for layer in range(shape.layers):
        groups[f"attention {layer}"] = {
            **norm,
            "in": (3 * hidden, hidden),
            "in bias": (3 * hidden,),
            "out": (hidden, hidden),
            "out bias": (hidden,),
        }
        groups[f"perceptron {layer}"] = {
            **norm,
            "in": (4 * hidden, hidden),
            "in bias": (4 * hidden,),
            "out": (hidden, 4 * hidden),
            "out bias": (hidden,),
        }
    groups["head"] = {**norm, "out": (shape.vocabulary, hidden)}
    return groups


@dataclass(frozen=True)
class Layout:
    """The place of each parameter in a flat tensor."""

    shape: ModelShape

    @cached_property
    def places(self) -> dict[tuple[str, str], tuple[int, tuple[int, ...]]]:
        """The first element and the sizes of each parameter, by group and name."""
        places: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = {}
        start = 0
        for group, names in list_parameters(self.shape).items():
            for name, sizes in names.items():
                places[group, name] = start, sizes
                start += _pad(math.prod(sizes))
        return places

    @cached_property
    def groups(self) -> dict[str, slice]:
        """The elements of each group, padding included."""
        ends: dict[str, slice] = {}
        for (group, _), (start, sizes) in self.places.items():
            first = ends[group].start if group in ends else start
            ends[group] = slice(first, start + _pad(math.prod(sizes)))
        return ends

    @property
    def size(self) -> int:
        """Elements of a flat tensor."""
        return sum(_pad(math.prod(sizes)) for _, sizes in self.places.values())

    def view_parameters(self, flat: Tensor) -> dict[tuple[str, str], Tensor]:
        """View each parameter within *flat*."""
        return {
            key: flat[start : start + math.prod(sizes)].view(sizes)
            for key, (start, sizes) in self.places.items()
        }


def _pad(count: int) -> int:
    return -(-count // ALIGN_ELEMENTS) * ALIGN_ELEMENTS


def make_initial(layout: Layout, key: int, device: torch.device) -> Tensor:
    """Make the initial parameters, the same bits on every part: fp32, flat."""
    import torch

    flat = torch.empty(layout.size, device=device)
    rows = flat.view(-1, ALIGN_ELEMENTS)
    for start in range(0, len(rows), ROWS_PER_BLOCK):
        block = range(start, min(len(rows), start + ROWS_PER_BLOCK))
        made = make_integers(key, block, ALIGN_ELEMENTS, WEIGHT_LEVELS, device)
        rows[start : block.stop] = made.float() * WEIGHT_UNIT
    for (_, name), view in layout.view_parameters(flat).items():
        if name == "gain":
            view.add_(1)
    return flat


def make_future_mask(shape: ModelShape, device: torch.device) -> Tensor:
    """Mark which tokens (columns) are in the future of each token (row)."""
    import torch

    return torch.ones(shape.sequence, shape.sequence, device=device).triu(1).bool()


@dataclass(frozen=True, slots=True)
class Transformer:
    """The model: its *weights*, by group and name, and what multiplies them."""

    shape: ModelShape
    weights: Mapping[tuple[str, str], Tensor]
    multiply: Multiply
    future_mask: Tensor
    """Which tokens (columns) are in the future of each token (row)."""

    def compute_loss(self, tokens: Tensor) -> Tensor:
        """
        Compute the loss of predicting each of *tokens* (batch, sequence + 1).

        It is in fp32, or in the type of the weights if that is wider.
        """
        from torch.nn.functional import embedding

        x = embedding(tokens[:, :-1], self.weights["embedding", "tokens"])
        x = x + self.weights["embedding", "places"]
        for layer in range(self.shape.layers):
            x = x + self._attention(x, f"attention {layer}")
            x = x + self._perceptron(x, f"perceptron {layer}")
        logits = self.multiply(self._norm(x, "head"), self.weights["head", "out"].T)
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def _attention(self, x: Tensor, group: str) -> Tensor:
        import torch

        batch, sequence, hidden = x.shape
        heads, width = self.shape.heads, hidden // self.shape.heads
        mixed = self._linear(self._norm(x, group), group, "in")
        split = mixed.view(batch, sequence, 3, heads, width).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind()
        scores = self.multiply(query, key.transpose(-1, -2)) / math.sqrt(width)
        scores = scores.masked_fill(self.future_mask, MASKED_SCORE)
        # In fp32 at least, whatever the type of the rest, as is usual in training.
        wide = torch.promote_types(x.dtype, torch.float32)
        shares = scores.softmax(dim=-1, dtype=wide).to(x.dtype)
        seen = self.multiply(shares, value).transpose(1, 2)
        return self._linear(seen.reshape(x.shape), group, "out")

    def _perceptron(self, x: Tensor, group: str) -> Tensor:
        from torch.nn.functional import gelu

        wide = gelu(self._linear(self._norm(x, group), group, "in"))
        return self._linear(wide, group, "out")

    def _linear(self, x: Tensor, group: str, name: str) -> Tensor:
        product = self.multiply(x, self.weights[group, name].T)
        return product + self.weights[group, f"{name} bias"]

    def _norm(self, x: Tensor, group: str) -> Tensor:
        from torch.nn.functional import layer_norm

        gain, bias = self.weights[group, "gain"], self.weights[group, "bias"]
        return layer_norm(x, x.shape[-1:], gain, bias)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean over the rows of *logits* with deterministic operations only."""
    import torch

    # torch's own loss is not on its list of them
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    right = wide.gather(1, targets[:, None])[:, 0]
    return (wide.logsumexp(dim=1) - right).mean()
