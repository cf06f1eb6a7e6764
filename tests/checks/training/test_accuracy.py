"""Gradients in fp32 are near those in fp64, and an error that all ranks share moves them away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch import Tensor
from torch.nn import functional

from hpcverify.model import Verdict
from hpcverify.testing import find_value, judge_items, list_findings, make_context
from hpcverify_checks import training
from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.training.accuracy import MAX_GRADIENT_ERROR
from hpcverify_checks.training.shape import ModelShape
from tests.coverage.injections import find_injection
from tests.waiting import PATIENCE_S

PARAMS = training.TrainingParams(
    seconds=0.05,
    steps=2,
    ranks=1,
    shape=ModelShape(hidden=8, layers=1, heads=2, sequence=4, batch=2, vocabulary=16),
)
_gelu, _layer_norm, _softmax = functional.gelu, functional.layer_norm, Tensor.softmax


def is_single(out: Tensor) -> bool:
    return out.dtype == torch.float32


def stretch(out: Tensor) -> Tensor:
    """Make a result in fp32 too large by a thousandth: fp64 has other units."""
    return out * 1.001 if is_single(out) else out


def softmax(scores: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return stretch(_softmax(scores, dim=dim, dtype=dtype))


FAULTS: dict[str, tuple[object, str, Callable[..., Tensor]]] = {
    "gelu": (functional, "gelu", lambda x, **_: stretch(_gelu(x))),
    "layer_norm": (functional, "layer_norm", lambda *args: stretch(_layer_norm(*args))),
    "softmax": (Tensor, "softmax", softmax),
}
SHARED, LONE, ONCE = (
    find_injection("training", fault)
    for fault in (
        "all ranks: an activation is off by a thousandth, always",
        "one rank: an activation is off by a thousandth, always",
        "an activation is off in its last bit, once",
    )
)


@pytest.mark.parametrize("name", FAULTS)
def test_an_activation_that_is_always_wrong_on_all_ranks_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(*FAULTS[name])
    judgement = judge_items(training.CHECK, training.measure(make_context(tmp_path), PARAMS))
    assert judgement.verdict is SHARED.verdict is Verdict.WARN
    assert "gradient_error" in judgement.reason


@pytest.mark.system
def test_a_rank_whose_activations_are_always_wrong_is_contradicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other rank is a process of its own, and healthy.
    monkeypatch.setattr(*FAULTS["gelu"])
    params = structs.replace(PARAMS, ranks=2)
    items = list(training.measure(make_context(tmp_path), params))
    assert judge_items(training.CHECK, items).verdict is LONE.verdict
    (told,) = (f for f in list_findings(items) if f.code == "irreproducible_cpu")
    assert told.text.startswith("rank 1 and rank 0 trained to different bits")


def test_an_activation_that_is_off_in_its_last_bit_once_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(10**9))

    def gelu(x: Tensor, **_: object) -> Tensor:
        out = _gelu(x)
        if next(calls) == 3 * PARAMS.steps:  # in the third replay
            view_integers(out.data).bitwise_xor_(1)
        return out

    monkeypatch.setattr(functional, "gelu", gelu)
    params = structs.replace(PARAMS, seconds=PATIENCE_S)  # it ends with the fault
    items = list(training.measure(make_context(tmp_path), params))
    assert judge_items(training.CHECK, items).verdict is ONCE.verdict
    told, *_ = (f.text for f in list_findings(items) if f.code == "irreproducible_cpu")
    assert told.startswith("replay 3 of 2 training steps differs from the first replay on rank 0")


def test_gradients_that_are_no_numbers_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functional, "gelu", lambda x, **_: _gelu(x) * torch.nan)
    judgement = judge_items(training.CHECK, training.measure(make_context(tmp_path), PARAMS))
    assert judgement.verdict is Verdict.ERROR
    assert "gradients that are not finite in step 1, as all parts do" in judgement.reason


@pytest.mark.parametrize("seed", range(5))
def test_healthy_gradients_are_far_within_the_limit(tmp_path: Path, seed: int) -> None:
    items = list(training.measure(make_context(tmp_path, seed=seed), PARAMS))
    error = find_value(items, "gradient_error")
    assert error is not None
    assert error < MAX_GRADIENT_ERROR / 10
    assert judge_items(training.CHECK, items).verdict is Verdict.PASS
