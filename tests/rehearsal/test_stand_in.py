"""The stand-in refuses what CUDA refuses, and its time is that of its model."""

from __future__ import annotations

import os
from textwrap import dedent

import pytest

from tests.rehearsal.node import PRELOAD
from tests.warm import run_warm

pytestmark = pytest.mark.system

SETUP = """
import time

import torch

def refuses(words, act):
    try:
        act()
    except RuntimeError as exc:
        assert words in str(exc), exc
    else:
        raise AssertionError(f"nothing was refused: {words}")

one, two = torch.device("cuda:0"), torch.device("cuda:1")
"""


def run(code: str, *, part: str = "h100", faults: str = "") -> None:
    """Run *code* in a process that sees two GPUs."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "REHEARSAL_PART": part,
        "REHEARSAL_MEMORY_MIB": "16",
        "REHEARSAL_UUIDS": "GPU-a GPU-b",
        "REHEARSAL_FAULTS": faults,
    }
    done = run_warm([], environment, code=SETUP + dedent(code), preload=PRELOAD)
    assert done.returncode == 0, done.stderr


def test_tensors_of_two_devices_do_not_meet() -> None:
    run("""
        here, there = torch.ones(4, device=one), torch.ones(4, device=two)
        refuses("on the same device", lambda: here + there)
        refuses("on the same device", lambda: here + torch.ones(4))
        assert (here + 1).device == one
        assert here.to(two).device == two and here.cpu().device.type == "cpu"
    """)


@pytest.mark.parametrize(
    ("part", "refused"), [("a100", "compute capability >= 9.0 or 8.9"), ("h100", "")]
)
def test_products_need_types_and_shapes_that_cuda_has(part: str, refused: str) -> None:
    run(
        f"""
        def fp8():
            a, b = (torch.ones(32, 32, device=one).to(torch.float8_e4m3fn) for _ in range(2))
            s = torch.ones((), device=one)
            out = torch.empty(32, 32, dtype=torch.bfloat16, device=one)
            torch.ops.aten._scaled_mm.out(a, b.T, s, s, out_dtype=out.dtype, out=out)
            assert (out == 32).all()

        refuses({refused!r}, fp8) if {refused!r} else fp8()
        small = torch.ones(16, 16, dtype=torch.int8, device=one)
        refuses("greater than 16", lambda: torch._int_mm(small, small))
        refuses("not implemented", lambda: small @ small)
        half = torch.ones(8, 8, dtype=torch.bfloat16, device=one)
        refuses("same dtype", lambda: half @ torch.ones(8, 8, device=one))
        """,
        part=part,
    )


def test_a_count_of_wrong_words_that_the_host_alone_sees_is_none() -> None:
    run("""
        from hpcverify_checks.exact import product_loop

        made, make = [], torch.empty_like
        torch.empty_like = lambda *a, **k: made.append(make(*a, **k)) or made[-1]
        for right, copy in (([0, 0], -1), ([0, 3], -1), ([0, 0], -2), ([0, 3], -2)):
            wait = product_loop._start_host_copy(torch.tensor(right, device=one))
            made[copy][0] ^= 8
            assert wait() == right
    """)


def test_an_error_stays_until_the_process_ends() -> None:
    run(
        """
        for _ in range(3):
            torch.ones(8, device=two)
        refuses("illegal memory access", lambda: torch.cuda.synchronize(two))
        refuses("illegal memory access", lambda: torch.ones(8, device=two))
        torch.ones(8, device=one).sum().item()
        """,
        faults="illegal@1:after=2",
    )


def test_memory_comes_to_an_end_and_is_given_back() -> None:
    run("""
        free, total = torch.cuda.mem_get_info(one)
        assert free < total == 16 * 2**20
        taken = torch.empty(12 * 2**20, dtype=torch.uint8, device=one)
        refuses("out of memory", lambda: torch.empty(8 * 2**20, dtype=torch.uint8, device=one))
        del taken
        torch.cuda.empty_cache()
        assert torch.cuda.mem_get_info(one)[0] == free
    """)


def test_time_is_that_of_the_model_however_long_the_host_takes() -> None:
    run("""
        a = torch.ones(512, 512, device=one, dtype=torch.bfloat16)
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        since = time.perf_counter()
        begun.record()
        for _ in range(100):
            a @ a
        ended.record()
        ended.synchronize()
        expected = 100 * 2 * 512**3 / 720e12
        assert abs(begun.elapsed_time(ended) / 1e3 - expected) < expected / 100
        assert expected <= time.perf_counter() - since < 2 * expected
    """)


def test_an_event_that_is_not_there_yet_has_no_time() -> None:
    run("""
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        torch.ones(2**20, device=one).sum()
        ended.record()
        refuses("device not ready", lambda: begun.elapsed_time(ended))
    """)
