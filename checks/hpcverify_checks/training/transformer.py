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

import torch
from torch import Tensor, nn

from hpcverify_checks.exact.bits import make_integers
from hpcverify_checks.training.shape import ModelShape

ALIGN_ELEMENTS = 64
"""Each parameter begins on a cache line, so that a library that treats unaligned data
differently has no choice."""
WEIGHT_LEVELS, WEIGHT_UNIT = 2**15 - 1, 2.0**-20
"""The initial weights are integers within +- the first, times the second: exact, with a
standard deviation of 0.018 (GPT-2 had 0.02)."""
ROWS_PER_BLOCK = 2**16
"""Rows of `ALIGN_ELEMENTS` weights made at a time, in 64-bit integers."""
MASKED_SCORE = -1e9


class Embedding(nn.Module):
    """What tokens and their places mean."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.places = nn.Parameter(torch.empty(shape.sequence, shape.hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed *tokens* (batch, sequence)."""
        embedded: Tensor = self.tokens(tokens)
        return embedded + self.places


class Attention(nn.Module):
    """Causal attention with an explicit softmax."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm = nn.LayerNorm(shape.hidden)
        self.wide = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.out = nn.Linear(shape.hidden, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to each token of *x* (batch, sequence, hidden) and those before it."""
        sequence, width = x.shape[1], x.shape[2] // self.heads
        mixed: Tensor = self.wide(self.norm(x))
        split = mixed.view(*x.shape[:2], 3, self.heads, width).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind()
        scores = query @ key.transpose(-1, -2) / math.sqrt(width)
        future = torch.ones(sequence, sequence, device=x.device, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, MASKED_SCORE)
        # In fp32 at least, whatever the type of the rest, as is usual in training.
        precise = torch.promote_types(x.dtype, torch.float32)
        shares = scores.softmax(dim=-1, dtype=precise).to(x.dtype)
        seen = (shares @ value).transpose(1, 2)
        attended: Tensor = self.out(seen.reshape(x.shape))
        return attended


class Transformer(nn.ModuleDict):
    """The model; its children are the groups of parameters that are digested."""

    def __init__(self, shape: ModelShape) -> None:
        """Describe its parameters without memory: `bind` gives them theirs."""
        hidden = shape.hidden
        with torch.device("meta"):
            groups: dict[str, nn.Module] = {"embedding": Embedding(shape)}
            for layer in range(shape.layers):
                groups[f"attention {layer}"] = Attention(shape)
                groups[f"perceptron {layer}"] = nn.Sequential(
                    nn.LayerNorm(hidden),
                    nn.Linear(hidden, 4 * hidden),
                    nn.GELU(),
                    nn.Linear(4 * hidden, hidden),
                )
            head = nn.Linear(hidden, shape.vocabulary, bias=False)
            super().__init__(groups | {"head": nn.Sequential(nn.LayerNorm(hidden), head)})

    def forward(self, tokens: Tensor) -> Tensor:
        """
        Compute the loss of predicting each of *tokens* (batch, sequence + 1).

        It is in fp32, or in the type of the weights if that is wider.
        """
        embedding, *blocks, head = self.values()
        x = embedding(tokens[:, :-1])
        for block in blocks:
            x = x + block(x)
        return cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten())

    def use(self, weights: Tensor, gradients: Tensor) -> None:
        """Let the parameters and their gradients be views of flat *weights* and *gradients*."""
        self.load_state_dict(view_parameters(self, weights), assign=True)
        for name, gradient in view_parameters(self, gradients).items():
            self.get_parameter(name).grad = gradient


def view_parameters(model: Transformer, flat: Tensor) -> dict[str, Tensor]:
    """View each parameter of *model* within *flat*."""
    views, start = dict[str, Tensor](), 0
    for name, parameter in model.named_parameters():
        views[name] = flat[start : start + parameter.numel()].view(parameter.shape)
        start += _pad(parameter.numel())
    return views


def find_groups(model: Transformer) -> dict[str, slice]:
    """Find the elements of each group in a flat tensor, padding included."""
    groups, start = dict[str, slice](), 0
    for name, module in model.named_children():
        stop = start + sum(_pad(parameter.numel()) for parameter in module.parameters())
        groups[name], start = slice(start, stop), stop
    return groups


def _pad(count: int) -> int:
    return -(-count // ALIGN_ELEMENTS) * ALIGN_ELEMENTS


def make_initial(model: Transformer, key: int, device: torch.device) -> Tensor:
    """Make the initial parameters, the same bits on every part: fp32, flat."""
    size = sum(_pad(parameter.numel()) for parameter in model.parameters())
    flat = torch.empty(size, device=device)
    rows = flat.view(-1, ALIGN_ELEMENTS)
    for start in range(0, len(rows), ROWS_PER_BLOCK):
        block = range(start, min(len(rows), start + ROWS_PER_BLOCK))
        made = make_integers(key, block, ALIGN_ELEMENTS, WEIGHT_LEVELS, device)
        rows[start : block.stop] = made.float() * WEIGHT_UNIT
    views = view_parameters(model, flat)
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            views[f"{name}.weight"].add_(1)
    return flat


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean over the rows of *logits* with deterministic operations only."""
    # torch's own loss is not on its list of them
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    right = wide.gather(1, targets[:, None])[:, 0]
    return (wide.logsumexp(dim=1) - right).mean()
