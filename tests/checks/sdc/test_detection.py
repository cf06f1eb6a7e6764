"""Every fault is found for the right reason, and in a healthy part there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hpcverify.check import CHECKER_BROKEN, FOUND_NOTHING, Unable
from hpcverify.model import Cause, Remedy, Result, Verdict
from hpcverify.testing import judge_items, make_context
from hpcverify_checks import sdc
from hpcverify_checks.exact.families import FAMILIES, FP8_LIMIT
from hpcverify_checks.exact.product_loop import Compare, ProductSeams, compare
from hpcverify_checks.exact.products import SHIFT_COUNT, Shape, find_constant_bits
from hpcverify_checks.node.dtypes import Multiply, multiply
from hpcverify_checks.sdc import faults
from hpcverify_checks.sdc import trials as sdc_trials
from hpcverify_checks.sdc.prepare import DeviceTask, prepare
from tests.checks.sdc.page import EVERY, PAGE, by_fault, page, tried

CPU = torch.device("cpu")
QUICK = sdc.SdcParams(seconds=0.4, size=128, depth=128)
MANTISSA = 23
"""Bits of an fp32 number behind its first."""


def staged(tmp_path: Path, name: str, seams: ProductSeams | None = None) -> sdc_trials.TrialSetup:
    task = DeviceTask(make_context(tmp_path), EVERY[name], sdc_trials.TRIAL_SHAPE, CPU)
    return sdc_trials.set_up_trials(replace(task, seams=seams) if seams else task)


def excepted(stage: sdc_trials.TrialSetup, at: int) -> tuple[int, ...]:
    bits = range(stage.output_bits)
    return tuple(bit for bit in bits if not stage.can_show(faults.stick(bit, at=at)))


@pytest.mark.system
@pytest.mark.parametrize("name", EVERY)
def test_every_fault_comes_out_as_it_must(name: str) -> None:
    assert [trial for trial in tried(name) if not trial.is_as_expected] == []


@pytest.mark.system
@pytest.mark.parametrize("name", EVERY)
def test_only_what_changes_nothing_is_let_pass(name: str) -> None:
    passed = {f for f, t in by_fault(name).items() if t.outcome == FOUND_NOTHING}

    assert passed <= {
        "none",
        "control, no proof: a stuck bit passes",
        "control, short sums: bit 0 stuck at 0 passes",
    }


@pytest.mark.system
@pytest.mark.parametrize("name", EVERY)
def test_every_type_is_tried_with_faults_of_all_kinds(name: str) -> None:
    outcomes = {trial.outcome for trial in tried(name)}

    assert outcomes == {
        sdc_trials.FOUND_COMPUTE,
        sdc_trials.FOUND_MEMORY,
        FOUND_NOTHING,
        CHECKER_BROKEN,
    }


@pytest.mark.parametrize("name", ["bf16", "fp16", "tf32", "fp32", "fp64", "int8"])
def test_no_output_bit_of_a_full_accumulator_is_excepted(tmp_path: Path, name: str) -> None:
    stage = staged(tmp_path, name)

    assert (excepted(stage, 0), excepted(stage, 1)) == ((), ())
    assert find_constant_bits(stage.references) == ()


def test_fp8_excepts_the_bits_that_sums_of_14_bits_cannot_set(tmp_path: Path) -> None:
    stage = staged(tmp_path, "fp8")
    unset = MANTISSA - (FP8_LIMIT.bit_length() - 1)

    assert excepted(stage, 0)[:unset] == tuple(range(unset))
    assert set(find_constant_bits(stage.references)) <= set(excepted(stage, 0))
    assert excepted(stage, 1) == ()


@pytest.mark.parametrize("name", EVERY)
def test_a_healthy_part_is_never_accused(tmp_path: Path, name: str) -> None:
    task = DeviceTask(make_context(tmp_path), EVERY[name], Shape(size=512, depth=128), CPU)
    made = prepare(task)
    every = len(made.jobs) * SHIFT_COUNT  # of each plan at each offset, and all differ
    outcome = task.hunt("cpu", made.jobs, lambda n: n >= every)

    assert (made.failures, outcome.corruption, outcome.mismatched_words) == ((), None, 0)
    assert outcome.products >= every


def stuck(multiply: Multiply) -> Multiply:
    return faults.make_multiply_fault(faults.stick(12, at=1))(multiply)


def test_the_selftest_of_a_broken_part_does_not_hold(tmp_path: Path) -> None:
    stage = staged(tmp_path, "fp32", ProductSeams(multiply=stuck(multiply)))
    healthy = next(iter(sdc_trials.list_cases(stage)))

    assert sdc_trials.try_fault(healthy)[0] == sdc_trials.FOUND_COMPUTE != healthy.expected


@pytest.mark.parametrize(
    "blindness",
    [faults.ignore_all, faults.ignore_lane, faults.ignore_low_bit, faults.drop_single_hits],
)
def test_the_selftest_of_a_blind_check_does_not_hold(
    tmp_path: Path, blindness: faults.CompareFault
) -> None:
    stage = staged(tmp_path, "fp32", ProductSeams(compare=blindness(compare)))
    healthy = next(iter(sdc_trials.list_cases(stage)))

    assert sdc_trials.try_fault(healthy)[0] == CHECKER_BROKEN != healthy.expected


def test_a_bit_that_is_missed_is_named(tmp_path: Path) -> None:
    def masked(compare: Compare) -> Compare:
        def lenient(found: torch.Tensor, expected: torch.Tensor, count: torch.Tensor) -> None:
            compare(found, expected, count)
            known = (found ^ expected) == 1 << 5
            count.sub_(known.sum() if int(known.sum()) == int(count) else 0)

        return lenient

    stage = staged(tmp_path, "fp64")
    lenient = replace(stage.bench, seams=ProductSeams(compare=masked(compare)))
    flips = sdc_trials.BIT_SWEEPS[0]

    assert sdc_trials.sweep_bits(replace(stage, bench=lenient), flips)[0] == "missed: 5"


def judge_check(tmp_path: Path, seams: ProductSeams) -> Result:
    """Run the whole check, and judge what it found as a run does."""
    return judge_items(sdc.CHECK, sdc.measure(make_context(tmp_path), QUICK, seams))


def test_a_stuck_bit_fails_the_part_and_asks_for_another(tmp_path: Path) -> None:
    verdict = judge_check(tmp_path, ProductSeams(multiply=stuck(multiply)))

    assert (verdict.verdict, verdict.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert "compute, persistent: 3 of 3 reruns wrong" in verdict.reason


def test_a_part_without_a_fault_passes(tmp_path: Path) -> None:
    assert judge_check(tmp_path, ProductSeams()).verdict is Verdict.PASS


def test_a_blind_comparison_is_the_checks_own_error(tmp_path: Path) -> None:
    with pytest.raises(Unable, match="did not notice") as caught:
        judge_check(tmp_path, ProductSeams(compare=faults.ignore_all(compare)))
    assert (caught.value.cause, caught.value.remedy) == (Cause.CHECKER, Remedy.FIX_CHECKER)


@pytest.mark.system
def test_the_selftest_tries_every_type_that_the_part_multiplies(tmp_path: Path) -> None:
    trials = list(sdc_trials.selftest(make_context(tmp_path)))
    names = {trial.fault.partition(":")[0] for trial in trials}

    assert {"fp32", "fp64"} <= names <= FAMILIES.keys()
    assert all(trial.is_as_expected and trial.part_id == "cpu" for trial in trials)


def test_the_page_is_what_the_tests_hold() -> None:
    assert PAGE.read_text() == page(), "run: make sdc-table"
