"""The fused comparison counts exactly, and the kernel compiles for a GPU."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from json import JSONDecodeError
from pathlib import Path
from subprocess import CalledProcessError
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import libcuda_dirs, library_dirs
from triton.compiler import ASTSource
from triton.knobs import runtime as runtime_knobs
from triton.runtime import driver
from triton.runtime.errors import PTXASError

from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.exact.kernels import (
    MAX_REASON_CHARACTERS,
    READ_COUNT,
    READ_WORDS,
    compare_fused,
    load_comparison,
    prepare_comparison,
    try_launch,
)
from hpcverify_checks.exact.product_loop import compare
from hpcverify_checks.exact.triton_kernels import count_unequal
from tests.checks.exact.interpreted import interpreter

CPU = torch.device("cpu")
ONE = READ_WORDS * READ_COUNT
"""Words that one program reads."""
Flips = tuple[tuple[int, int], ...]
"""Words and bits."""


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


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


@pytest.mark.system
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


def miscounted(length: int, words: tuple[int, ...]) -> list[tuple[int, int]]:
    """List the words and bits whose single flip the kernel does not count as one."""
    places = [(word, bit) for word in words for bit in range(64)]
    return [place for place in places if counted(length, (place,)) != (1, 1)]


@pytest.mark.system
def test_every_bit_of_a_word_is_compared_at_the_edges_of_blocks_too(interpreted: Executor) -> None:
    length = ONE + 3
    words = (0, READ_WORDS - 1, READ_WORDS, ONE - 1, ONE, length - 1)
    assert interpreted.submit(miscounted, length, words).result() == []


def disagreed(seed: int) -> list[tuple[int, int, int]]:
    """List the patterns of which the kernel counts otherwise than torch."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    wrong: list[tuple[int, int, int]] = []
    for _ in range(30):
        length = chance.choice((1, 15, 17, READ_WORDS + 1, ONE - 1, ONE + READ_WORDS, 2 * ONE + 5))
        flips = {chance.randrange(length): chance.randrange(64) for _ in range(length // 3 + 1)}
        fused, eager = counted(length, tuple(flips.items()))
        if (fused, eager) != (len(flips), len(flips)):
            wrong.append((length, fused, eager))
    return wrong


@pytest.mark.system
def test_whatever_differs_is_counted_as_torch_does(interpreted: Executor) -> None:
    assert interpreted.submit(disagreed, 1).result() == []


def all_spoiled(length: int) -> int:
    count = torch.tensor(77)
    found = torch.arange(length, dtype=torch.int64)
    compare_fused(found, ~found, count)
    return int(count)


def test_all_words_are_counted_in_all_programs(interpreted: Executor) -> None:
    length = 3 * ONE + 100
    assert interpreted.submit(all_spoiled, length).result() == length


def test_without_cuda_torchs_own_operations_compare() -> None:
    assert load_comparison(CPU) == (compare, "")


def raised(error: Exception) -> None:
    raise error


def raised_at(error: Exception, _device: torch.device) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("libcuda.so cannot found!"),
        ImportError("failed to map segment from shared object"),
        RuntimeError("Failed to find C compiler"),
        PermissionError("~/.triton"),
        CalledProcessError(1, "gcc"),
        JSONDecodeError("Expecting value", "", 0),
        PTXASError("no such architecture"),
    ],
)
def test_what_keeps_triton_from_compiling_is_a_reason(error: Exception) -> None:
    failure = try_launch(partial(raised, error), CPU)
    assert failure == f"{type(error).__name__}: {error}"


def test_a_kernel_that_runs_is_launched_without_a_reason() -> None:
    assert not try_launch(int, CPU)


def test_a_reason_is_one_short_line() -> None:
    failure = try_launch(partial(raised, RuntimeError("no\ncompiler " + 99 * "here ")), CPU)
    assert failure.startswith("RuntimeError: no compiler here")
    assert len(failure) <= MAX_REASON_CHARACTERS


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
        torch.OutOfMemoryError("CUDA out of memory."),
        TypeError("a mistake of ours"),
    ],
)
def test_what_cuda_raised_and_a_mistake_of_ours_go_through(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        try_launch(partial(raised, error), CPU)


def test_an_error_of_cuda_that_lasts_is_raised_though_triton_met_it_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")
    monkeypatch.setattr(torch.cuda, "synchronize", partial(raised_at, broken))
    first = RuntimeError("Triton Error [CUDA]: uncorrectable ECC error encountered")
    with pytest.raises(torch.AcceleratorError):
        try_launch(partial(raised, first), torch.device("cuda"))


@contextmanager
def mounted(point: Path, options: str) -> Generator[Path]:
    """Mount memory with *options* at *point*."""
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


@pytest.fixture
def gpu_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let Triton begin as where torch sees a GPU, but ldconfig no libcuda."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    yield
    libcuda_dirs.cache_clear()
    library_dirs.cache_clear()


@pytest.fixture
def libcuda(gpu_seen: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make a libcuda that holds nothing: Triton gets as far as loading its launcher."""
    del gpu_seen
    order = ["gcc", "-shared", "-x", "c", "/dev/null", "-o", f"{tmp_path}/libcuda.so.1"]
    subprocess.run(order, check=True)
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(tmp_path))


def real_failure() -> str:
    """Have the real Triton launch our kernel; say why it could not."""
    return try_launch(prepare_comparison(CPU), CPU)


@pytest.mark.usefixtures("gpu_seen")
def test_a_libcuda_that_triton_does_not_find_is_no_error() -> None:
    if b"libcuda.so.1" in subprocess.check_output(["/sbin/ldconfig", "-p"]):
        pytest.skip("ldconfig knows the driver of this machine's GPU")
    assert real_failure().startswith("AssertionError: libcuda.so cannot found!")


@pytest.mark.usefixtures("libcuda")
def test_no_compiler_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert real_failure().startswith("RuntimeError: Failed to find C compiler.")


@pytest.mark.usefixtures("libcuda")
def test_a_compiler_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    assert real_failure().startswith("CalledProcessError: Command '['false'")


@pytest.mark.needs("root", "cc")
@pytest.mark.usefixtures("libcuda")
def test_a_cache_on_a_noexec_mount_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with mounted(tmp_path / "m", "noexec") as point:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(point))
        failure = real_failure()
    assert failure.startswith("ImportError: ")
    assert "failed to map segment from shared object" in failure


@pytest.mark.needs("root", "cc")
@pytest.mark.usefixtures("libcuda")
def test_a_cache_that_cannot_be_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with mounted(tmp_path / "m", "ro") as point:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(point))
        assert real_failure().startswith("OSError: [Errno 30] Read-only file system")


def launch_nothing(*_: object) -> None:
    pass


def load_nothing(*_: object) -> tuple[int, ...]:
    return 0, 0, 0, 0, 1024


def give_properties(_device: int) -> dict[str, int]:
    return {"max_shared_mem": 2**18}


H100 = SimpleNamespace(
    utils=SimpleNamespace(load_binary=load_nothing, get_device_properties=give_properties),
    launcher_cls=lambda *_: launch_nothing,
    get_current_device=int,
    get_current_stream=int,
    get_current_target=partial(GPUTarget, "cuda", 90, 32),
)
"""Triton's driver of an H100 that launches nothing."""


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Let Triton compile for an H100; keep the names of the kernels that it compiled."""
    names: list[str] = []

    def note(*, fn: Any, **_: object) -> None:
        names.append(fn.name)

    driver.set_active(cast("Any", H100))
    runtime_knobs.jit_post_compile_hook = note
    yield names
    runtime_knobs.jit_post_compile_hook = None
    driver._active = None
    count_unequal.device_caches.clear()


@pytest.mark.system
def test_the_kernel_is_compiled_before_the_hunt_and_not_during_it(compiled: list[str]) -> None:
    assert not try_launch(prepare_comparison(CPU), CPU)
    assert len(compiled) == 1

    for family in FAMILIES.values():
        itemsize = getattr(torch, family.output).itemsize
        words = torch.zeros(256 * 256 * itemsize // 8, dtype=torch.int64)
        counts = torch.zeros(6, dtype=torch.int64)
        for count in counts:
            compare_fused(words, words, count)
    assert len(compiled) == 1


ARCHITECTURES = (70, 75, 80, 89, 90, 100, 103, 120)
"""Compute capabilities, Volta to Blackwell."""
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def compile_comparison(capability: int) -> Mapping[str, Any]:
    """Compile the comparison for an architecture; give each stage, from PTX to instructions."""
    types = dict.fromkeys(("found", "expected", "count"), "*i64") | {"length": "i32"}
    constants = {"width": READ_WORDS, "reads": READ_COUNT}
    signature = types | dict.fromkeys(constants, "constexpr")
    # As at a launch: addresses and sizes are multiples of 16, but for that of a count.
    aligned: dict[tuple[int], list[list[object]]] = {
        (place,): [["tt.divisibility", 16]] for place, name in enumerate(types) if name != "count"
    }
    source = ASTSource(count_unequal, signature, constants, aligned)
    target = GPUTarget("cuda", capability, 32)
    made = triton.compile(source, target=target, options={"num_warps": 4})
    return cast("Mapping[str, Any]", made.asm)


def local_memory(cubin: bytes, folder: Path) -> int:
    """Say how many bytes of local memory a thread needs, for what registers cannot hold."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    order = [str(CUOBJDUMP), "--dump-resource-usage", str(file)]
    usage = subprocess.run(order, capture_output=True, text=True, check=True).stdout
    return sum(int(number) for number in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))


@pytest.mark.system
@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_the_comparison_compiles_for_every_architecture_and_needs_no_local_memory(
    capability: int, tmp_path: Path
) -> None:
    made = compile_comparison(capability)
    assert f".target sm_{capability}" in made["ptx"]
    assert local_memory(made["cubin"], tmp_path) == 0


@pytest.fixture(scope="module")
def comparison() -> str:
    return str(compile_comparison(90)["ptx"])


@pytest.mark.system
def test_the_only_atomic_is_jumped_over_where_nothing_differs(comparison: str) -> None:
    assert len(re.findall(r"\b(?:atom|red)\.", comparison)) == 1
    guarded = r"@%p\d+ bra\s+(\$L\w+);(?:(?!\$L__BB).)*atom\.(?:(?!\$L__BB).)*\1:\s+.*?ret"
    assert re.search(guarded, comparison, re.DOTALL)


@pytest.mark.system
def test_the_comparison_stores_nothing_and_reads_two_words_at_once(comparison: str) -> None:
    assert "st.global" not in comparison
    reads = re.findall(r"ld\.global\S*", comparison)
    assert reads
    assert all(".v2.b64" in read for read in reads)
