"""The fused comparison counts exactly, and both kernels compile for a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from subprocess import CalledProcessError
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import PTXASError

from hpcverify_checks.common.kernels import (
    READ_COUNT,
    READ_WORDS,
    can_launch,
    choose_comparison,
    compare_fused,
    load_kernels,
)
from hpcverify_checks.common.locate import TILE_DEPTH, TILE_EDGE, TILE_STEP, TILE_WARPS
from hpcverify_checks.common.product_loop import compare
from hpcverify_checks.common.triton_kernels import check_tile, count_unequal, sm_id
from tests.checks.common.interpreted import interpreter

ONE = READ_WORDS * READ_COUNT
"""Words that one program reads."""
Flips = tuple[tuple[int, int], ...]
"""Words and bits."""


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Executor]:
    with interpreter() as pool:
        yield pool


def counted(length: int, flips: Flips) -> tuple[int, int]:
    """Flip bits of so many words; say what the kernel counts, and torch."""
    expected = torch.arange(length, dtype=torch.int64) * 0x1234567890ABCDF
    found = expected.clone()
    for word, bit in flips:
        found[word] ^= 1 << bit if bit < 63 else -(1 << 63)
    fused, eager = (torch.tensor(77) for _ in range(2))
    compare_fused(found, expected, fused)
    compare(found, expected, eager)
    return int(fused), int(eager)


@pytest.mark.parametrize("length", [1, READ_WORDS, ONE, 2 * ONE, 2 * ONE + 1, 3 * ONE - 7])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_any_flipped_bit_is_counted(interpreted: Executor, length: int, place: float) -> None:
    word = int((length - 1) * place)
    for bit in (0, 17, 31, 32, 62, 63):
        flips = ((word, bit),)
        assert interpreted.submit(counted, length, flips).result() == (1, 1)


@pytest.mark.parametrize("length", [1, ONE - 1, ONE, 2 * ONE + 1])
def test_nothing_is_counted_where_nothing_differs(interpreted: Executor, length: int) -> None:
    assert interpreted.submit(counted, length, ()).result() == (0, 0)


def test_words_are_counted_and_not_bits(interpreted: Executor) -> None:
    flips = ((5, 0), (5, 63), (6, 1), (ONE - 1, 2), (ONE, 3), (2 * ONE, 4))
    assert interpreted.submit(counted, 2 * ONE + 3, flips).result() == (5, 5)


def all_spoiled(length: int) -> int:
    count = torch.tensor(77)
    found = torch.arange(length, dtype=torch.int64)
    compare_fused(found, ~found, count)
    return int(count)


def test_all_words_are_counted_in_all_programs(interpreted: Executor) -> None:
    length = 3 * ONE + 100
    assert interpreted.submit(all_spoiled, length).result() == length


def test_without_cuda_torchs_own_operations_compare() -> None:
    assert load_kernels(torch.device("cpu")) is None
    assert choose_comparison(torch.device("cpu")) is compare


def raised(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler"),
        PermissionError("~/.triton"),
        CalledProcessError(1, "gcc"),
        PTXASError("no such architecture"),
    ],
)
def test_what_keeps_triton_from_compiling_is_no_error(error: Exception) -> None:
    assert not can_launch(partial(raised, error))
    assert can_launch(int)


def test_a_mistake_of_ours_is_an_error() -> None:
    with pytest.raises(TypeError):
        can_launch(partial(raised, TypeError()))


def ptx(kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any], warps: int) -> str:
    """Compile a *kernel* for an H100, down to the instructions; give the PTX."""
    signature = dict(types) | dict.fromkeys(constants, "constexpr")
    # As at a launch: addresses and sizes are multiples of 16, but for that of a count.
    aligned: dict[tuple[int], list[list[object]]] = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(types)
        if name not in ("count", "repeats")
    }
    source = ASTSource(kernel, signature, dict(constants), aligned)
    target = GPUTarget("cuda", 90, 32)
    made = triton.compile(source, target=target, options={"num_warps": warps})
    assert made.asm["cubin"]
    return str(made.asm["ptx"])


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture(scope="module")
def comparison() -> str:
    words = dict.fromkeys(("found", "expected", "count"), "*i64")
    constants = {"width": READ_WORDS, "reads": READ_COUNT}
    return ptx(count_unequal, words | {"length": "i32"}, constants, 4)


@pytest.fixture(scope="module")
def tile() -> str:
    types = {"a": "*bf16", "b": "*bf16", "expected": "*fp32", "log": "*i32"}
    sizes = {"edge": TILE_EDGE, "depth": TILE_DEPTH, "step": TILE_STEP}
    constants = {"place": sm_id} | sizes
    return ptx(check_tile, types | {"repeats": "i32"}, constants, TILE_WARPS)


def test_the_only_atomic_is_jumped_over_where_nothing_differs(comparison: str) -> None:
    assert len(re.findall(r"\b(?:atom|red)\.", comparison)) == 1
    guarded = r"@%p\d+ bra\s+(\$L\w+);(?:(?!\$L__BB).)*atom\.(?:(?!\$L__BB).)*\1:\s+.*?ret"
    assert re.search(guarded, comparison, re.DOTALL)


def test_the_comparison_stores_nothing_and_reads_two_words_at_once(comparison: str) -> None:
    assert "st.global" not in comparison
    reads = re.findall(r"ld\.global\S*", comparison)
    assert reads
    assert all(".v2.b64" in read for read in reads)


def test_the_tile_is_computed_by_tensor_cores_on_a_named_multiprocessor(tile: str) -> None:
    assert "wgmma.mma_async" in tile
    assert tile.count("%smid") == 1
    assert not re.search(r"\b(?:atom|red)\.", tile)
