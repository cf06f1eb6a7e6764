"""The size of the transformer, and what a step of it costs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

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
    def parameters(self) -> int:
        """All parameters: with embeddings, biases and norms."""
        others = self.vocabulary + self.sequence + 13 * self.layers + 2
        return self.matmul_parameters + others * self.hidden

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
