"""The model is a transformer, all of whose bits have a place of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from hpcverify_checks.exact.bits import compute_digest
from hpcverify_checks.training import CPU_SHAPE, GPU_SHAPES, estimate_memory
from hpcverify_checks.training.shape import ModelShape
from hpcverify_checks.training.transformer import (
    ALIGN_ELEMENTS,
    Transformer,
    cross_entropy,
    find_groups,
    make_initial,
    view_parameters,
)

SMALL = ModelShape(hidden=16, layers=2, heads=2, sequence=8, batch=2, vocabulary=32)
CPU, META = torch.device("cpu"), torch.device("meta")


def model(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Transformer:
    this = Transformer(shape)
    flat = make_initial(this, 1, device).to(dtype)
    this.use(flat, torch.zeros_like(flat))
    return this


def batch(shape: ModelShape, device: torch.device = CPU) -> Tensor:
    count = shape.batch * (shape.sequence + 1)
    tokens = (torch.arange(count) * 7 % shape.vocabulary).to(device)
    return tokens.view(shape.batch, shape.sequence + 1)


def test_each_parameter_is_aligned_and_none_overlap() -> None:
    this = Transformer(SMALL)
    flat = torch.zeros_like(make_initial(this, 1, CPU))
    for view in view_parameters(this, flat).values():
        assert view.data_ptr() % (4 * ALIGN_ELEMENTS) == flat.data_ptr() % (4 * ALIGN_ELEMENTS)
        view.add_(1)
    assert set(flat.tolist()) == {0.0, 1.0}


def test_the_groups_are_all_of_the_parameters() -> None:
    this = Transformer(SMALL)
    ends = [(part.start, part.stop) for part in find_groups(this).values()]
    assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]
    assert ends[-1][1] == len(make_initial(this, 1, CPU))


@pytest.mark.parametrize("shape", [SMALL, CPU_SHAPE, *GPU_SHAPES])
def test_the_shape_knows_the_number_of_parameters(shape: ModelShape) -> None:
    assert shape.parameters == sum(part.numel() for part in Transformer(shape).parameters())


def test_the_initial_parameters_are_the_same_on_every_machine() -> None:
    assert compute_digest(make_initial(Transformer(SMALL), 1, CPU)) == 0x8A43_1B71_77C7_1EE0


def test_other_seeds_have_other_initial_parameters() -> None:
    first, second = (make_initial(Transformer(SMALL), key, CPU) for key in (1, 2))
    assert (first != second).float().mean() > 0.5


def reference(this: Transformer, tokens: Tensor) -> Tensor:
    """Compute the loss with torch's own layers."""
    width = SMALL.hidden
    mask = nn.Transformer.generate_square_subsequent_mask(SMALL.sequence)
    weights = dict(this.named_parameters())
    x = weights["embedding.tokens.weight"][tokens[:, :-1]] + weights["embedding.places"]
    for number in range(SMALL.layers):
        layer = nn.TransformerEncoderLayer(
            width,
            SMALL.heads,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        layer.load_state_dict(state(this, number))
        x = layer(x, mask, is_causal=True)
    gain, bias = weights["head.0.weight"], weights["head.0.bias"]
    x = nn.functional.layer_norm(x, (width,), gain, bias)
    logits = x @ weights["head.1.weight"].T
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def state(this: Transformer, number: int) -> dict[str, Tensor]:
    """Name the parameters of a layer as torch does."""
    attention, perceptron = f"attention {number}", f"perceptron {number}"
    names = {
        "self_attn.in_proj_weight": f"{attention}.wide.weight",
        "self_attn.in_proj_bias": f"{attention}.wide.bias",
        "self_attn.out_proj.weight": f"{attention}.out.weight",
        "self_attn.out_proj.bias": f"{attention}.out.bias",
        "linear1.weight": f"{perceptron}.1.weight",
        "linear1.bias": f"{perceptron}.1.bias",
        "linear2.weight": f"{perceptron}.3.weight",
        "linear2.bias": f"{perceptron}.3.bias",
        "norm1.weight": f"{attention}.norm.weight",
        "norm1.bias": f"{attention}.norm.bias",
        "norm2.weight": f"{perceptron}.0.weight",
        "norm2.bias": f"{perceptron}.0.bias",
    }
    return {name: this.get_parameter(ours).detach() for name, ours in names.items()}


def test_it_is_the_transformer_that_torch_has() -> None:
    this = model(SMALL, CPU, torch.float32)
    tokens = batch(SMALL)
    torch.testing.assert_close(this(tokens), reference(this, tokens))


def test_the_cross_entropy_is_that_of_torch() -> None:
    logits = make_initial(Transformer(SMALL), 3, CPU)[: 20 * 32].view(20, 32) * 100
    targets = torch.arange(20)
    expected = nn.functional.cross_entropy(logits, targets)
    torch.testing.assert_close(cross_entropy(logits, targets), expected)


def test_its_operations_are_those_that_torch_counts() -> None:
    for shape in (SMALL, CPU_SHAPE, GPU_SHAPES[0]):
        this = model(shape, META, torch.bfloat16)
        with FlopCounterMode(display=False) as counter:
            torch.autograd.backward(this(batch(shape, META)))
        assert counter.get_total_flops() == shape.operations


def kept(shape: ModelShape) -> int:
    """Count the bytes that autograd keeps of a forward pass, weights included."""
    storages: dict[int, int] = {}
    tensors: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()  # nothing else names one on meta
        tensors.append(tensor)  # or the next one may take its place
        return tensor

    this = model(shape, META, torch.bfloat16)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        this(batch(shape, META))
    return sum(storages.values())


@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_more_memory_is_asked_for_than_a_step_keeps(shape: ModelShape) -> None:
    asked = estimate_memory(shape, "bf16")
    assert 0.2 * asked < kept(shape) < 0.7 * asked
