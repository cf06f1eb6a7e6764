"""Memory errors: what counters do in a run and between runs, and what they show."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hpcverify.check import Context, Sample, Skip, Unable, Watch
from hpcverify.limits.specs import load_specs
from hpcverify.model import (
    CarryOver,
    Cause,
    CheckItem,
    Coverage,
    Finding,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.telemetry import sysfs
from hpcverify.telemetry.gpus import GpuAnswers
from hpcverify.telemetry.probe import probe as probe_files
from hpcverify.telemetry.reading import Reading
from hpcverify.testing import find_value, judge_items, make_context
from hpcverify_checks import ecc
from hpcverify_checks.ecc import CHECK, EccParams
from hpcverify_checks.node.counters import Moment, compare_with_last_run
from tests.doubles import read_items
from tests.nvml_lab.nvmllab import Lab
from tests.telemetry import trees
from tests.telemetry.nvml.test_survey import probe

HOUR = 3600.0

MEASURE = """
import os, sys, pathlib, msgspec
from hpcverify.model import CarryOver
from hpcverify.telemetry.probe import probe
from hpcverify.run.wire import encode_response
from hpcverify_checks.node import gpu_source
from hpcverify_checks import ecc
from hpcverify.testing import make_context
root, marks, later = pathlib.Path(sys.argv[1]), *sys.argv[2:]
marks = msgspec.json.decode(marks, type=tuple[CarryOver, ...])
ctx = make_context(root, inventory=probe(root), carry_overs=marks)
if later:
    scenario = pathlib.Path(os.environ["NVML_LAB_SCENARIO"])
    scenario.with_suffix(".new").write_text(later)
    scenario.with_suffix(".new").replace(scenario)
ask = lambda: gpu_source.open_gpu_source(ctx).read_memory_errors()
for found in ecc.read_counters(ctx, root, ask):
    sys.stdout.buffer.write(encode_response(1, found))
"""


def measured(lab: Lab, later: str = "", marks: Iterable[CarryOver] = ()) -> list[CheckItem]:
    """Probe the node, bring about what comes *later*, and measure."""
    known = msgspec.json.encode(list(marks)).decode()
    lines = lab.python(MEASURE, known, later).splitlines()
    return read_items(lines)


def marks_of(found: Iterable[CheckItem]) -> tuple[CarryOver, ...]:
    return tuple(f for f in found if isinstance(f, CarryOver))


def seen(count: int, name: str = "ecc.uncorrected.lifetime", ago: float = HOUR) -> CarryOver:
    """Make what the last run, so many seconds *ago*, left of a counter of that GPU."""
    then = Moment("", time.time() - ago)
    return compare_with_last_run(make_context(Path()), "GPU-0", {name: count}, then).carry_over


def observed(watch: Watch, ctx: Context) -> list[CheckItem]:
    return list(ecc.observe(watch, ctx, EccParams()))


def no_gpus() -> ecc.EccAnswers:
    raise Skip("no GPU on this node")


def on_host(ctx: Context, root: Path) -> list[CheckItem]:
    return list(ecc.read_counters(ctx, root, no_gpus))


def a_gpu(tmp_path: Path, *marks: CarryOver, name: str = "NVIDIA H100 80GB HBM3") -> Context:
    """Make the context of a node with one GPU, which its last run left *marks* of."""
    facts = {"driver": "580", "name": name}
    inventory = Inventory(parts=(Part("gpu", "GPU-0", "GPU 0", facts),))
    return make_context(tmp_path, inventory=inventory, carry_overs=marks)


def says(mode: float | None = 1, **values: float) -> ecc.EccAnswers:
    """Make the answer of that GPU; two underscores stand for a dot."""
    named = {name.replace("__", "."): value for name, value in values.items()}
    if mode is not None:
        named["ecc.mode"] = mode
    readings = (Reading(name, value, "", "GPU-0") for name, value in named.items())
    return GpuAnswers(answers={"GPU-0": tuple(readings)})


def read_gpu(tmp_path: Path, ctx: Context, answer: ecc.EccAnswers) -> list[CheckItem]:
    return list(ecc.read_counters(ctx, tmp_path / "bare", lambda: answer))


def codes(found: Iterable[CheckItem]) -> list[str]:
    return [f.code for f in found if isinstance(f, Finding)]


def counter(name: str, *values: float, period: float = 1.0) -> list[Sample]:
    return [Sample(name, v, "", "GPU-0", i * period) for i, v in enumerate(values)]


def test_a_machine_without_counters_is_not_observable(tmp_path: Path) -> None:
    ctx = make_context(tmp_path, inventory=probe_files(tmp_path / "bare"))
    with pytest.raises(Skip, match="no EDAC driver") as skip:
        on_host(ctx, tmp_path / "bare")
    assert skip.value.cause is Cause.NOT_OBSERVABLE


def test_a_gpu_without_its_driver_is_no_reason_to_skip(tmp_path: Path) -> None:
    problem = Finding("driver_not_loaded", "node", "no driver")
    ctx = make_context(tmp_path, inventory=Inventory(problems=(problem,)))
    with pytest.raises(Unable, match="no driver") as unable:
        list(CHECK.measure(ctx, EccParams()))
    assert unable.value.cause is Cause.MISCONFIGURED


def test_the_host_is_read_and_nothing_forgotten_even_if_gpus_cannot_be_asked(
    tmp_path: Path,
) -> None:
    def refuse() -> ecc.EccAnswers:
        raise Unable("no driver", Cause.MISCONFIGURED)

    mark = seen(7)
    root = trees.edac(tmp_path / "root", corrected=900)
    found: list[CheckItem] = []
    with pytest.raises(Unable):
        found.extend(ecc.read_counters(a_gpu(tmp_path, mark), root, refuse))
    assert Measurement("ecc.host.corrected", 900, "", "mc0/dimm1") in found
    assert mark in found


@pytest.mark.parametrize(("uncorrected", "verdict"), [(0, Verdict.PASS), (1, Verdict.WARN)])
def test_what_the_host_counted_before_the_run_warns_at_most(
    tmp_path: Path, uncorrected: int, verdict: Verdict
) -> None:
    root = trees.edac(tmp_path / "root", corrected=900, uncorrected=uncorrected)
    ctx = make_context(tmp_path, inventory=probe_files(root))
    assert judge_items(CHECK, on_host(ctx, root)).verdict is verdict


def test_what_the_host_counted_in_the_same_boot_is_new_only_once(tmp_path: Path) -> None:
    root = trees.edac(tmp_path / "root", uncorrected=1)
    first = on_host(make_context(tmp_path), root)
    trees.edac(root, uncorrected=2)
    second = on_host(make_context(tmp_path, carry_overs=marks_of(first)), root)
    assert judge_items(CHECK, first).verdict is Verdict.WARN
    judgement = judge_items(CHECK, second)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert "ecc.host.uncorrected.since 1 > 0" in judgement.reason
    third = on_host(make_context(tmp_path, carry_overs=marks_of(second)), root)
    assert judge_items(CHECK, third).verdict is Verdict.WARN


@pytest.mark.parametrize("old", ["7 1700000000 -", "{}", '{"boot": 3}'])
def test_what_an_older_version_left_accuses_nobody(tmp_path: Path, old: str) -> None:
    root = trees.edac(tmp_path / "root", uncorrected=3)
    marks = [
        CarryOver(name, old, part_id)
        for name in ("counters", "ecc.uncorrected.lifetime", "ecc.host.uncorrected")
        for part_id in ("GPU-0", "mc0/dimm1")
    ]
    answer = says(ecc__uncorrected__lifetime=9)
    found = list(ecc.read_counters(a_gpu(tmp_path, *marks), root, lambda: answer))
    assert judge_items(CHECK, found).verdict is Verdict.WARN
    assert ".since" not in str(found)


def test_the_host_counts_from_zero_with_each_boot(tmp_path: Path) -> None:
    root = trees.grow(trees.edac(tmp_path / "root", corrected=5), {sysfs.BOOT_ID_PATH: "one"})
    marks = marks_of(on_host(make_context(tmp_path), root))
    trees.grow(root, {sysfs.BOOT_ID_PATH: "two"})
    found = on_host(make_context(tmp_path, carry_overs=marks), root)
    since = [
        f.value
        for f in found
        if isinstance(f, Measurement) and f.name == "ecc.host.corrected.since"
    ]
    assert max(v for v in since if v is not None) == 5


def test_counters_that_stand_still_pass_whatever_they_show(tmp_path: Path) -> None:
    samples = [*counter("ecc.corrected", *[9e6] * 60), *counter("ecc.uncorrected", *[12] * 60)]
    watch = Watch(start=0, end=60, samples=samples)
    found = observed(watch, a_gpu(tmp_path))
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    assert find_value(found, "ecc.uncorrected.delta") == 0


def test_one_uncorrected_error_during_the_run_fails(tmp_path: Path) -> None:
    samples = counter("ecc.uncorrected", 12, 12, 13)
    watch = Watch(start=0, end=3, samples=samples)
    assert judge_items(CHECK, observed(watch, a_gpu(tmp_path))).verdict is Verdict.FAIL


@pytest.mark.parametrize(("errors", "verdict"), [(9, "pass"), (6000, "warn")])
def test_a_burst_of_corrected_errors_does_not_drown_in_a_long_run(
    tmp_path: Path, errors: int, verdict: str
) -> None:
    hours = [0.0] * 10_000 + [errors / 20] * 20 + [0.0] * 10_000
    samples = counter("ecc.corrected", *accumulate(hours))
    watch = Watch(start=0, end=20_000, samples=samples)
    found = observed(watch, a_gpu(tmp_path))
    assert judge_items(CHECK, found).verdict.value == verdict
    assert find_value(found, "ecc.corrected.delta") == pytest.approx(errors)


def test_a_single_corrected_error_in_a_short_check_is_no_rate(tmp_path: Path) -> None:
    samples = counter("ecc.corrected", 0, 1, period=0.1)
    found = observed(Watch(start=0, end=1, samples=samples), a_gpu(tmp_path))
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_a_counter_that_was_reset_under_way_counts_on(tmp_path: Path) -> None:
    samples = counter("ecc.uncorrected", 7, 0, 2)
    found = observed(Watch(start=0, end=3, samples=samples), a_gpu(tmp_path))
    assert find_value(found, "ecc.uncorrected.delta") == 2


def test_a_single_sample_gives_no_difference(tmp_path: Path) -> None:
    watch = Watch(start=0, end=1, samples=counter("ecc.uncorrected", 5))
    assert observed(watch, a_gpu(tmp_path)) == []


@pytest.mark.parametrize(
    ("rate", "seconds", "verdict"),
    [(0.01, 600, "pass"), (5, 600, "warn"), (4647, 1, "warn"), (4647, 60, "fail")],
)
def test_a_storm_of_corrected_errors_fails_and_a_gust_warns(
    tmp_path: Path, rate: float, seconds: int, verdict: str
) -> None:
    story = [0.0] * 100 + [rate] * seconds + [0.0] * 100
    watch = Watch(start=0, end=800, samples=counter("ecc.corrected", *accumulate(story)))
    judgement = judge_items(CHECK, observed(watch, a_gpu(tmp_path)))
    assert judgement.verdict.value == verdict
    assert (judgement.remedy is Remedy.CONTACT_VENDOR) == (verdict == "fail")


def test_a_gust_in_a_short_run_warns_and_is_no_storm(tmp_path: Path) -> None:
    samples = counter("ecc.corrected", *([0] * 6), *([4647] * 6))
    found = observed(Watch(start=0, end=12, samples=samples), a_gpu(tmp_path))
    assert judge_items(CHECK, found).verdict is Verdict.WARN
    assert find_value(found, "ecc.corrected.rate") == pytest.approx(4647 / 10)
    assert find_value(found, "ecc.corrected.sustained") == pytest.approx(4647 / 60)


@pytest.mark.parametrize(("rate", "verdict"), [(0.1, "pass"), (9, "warn"), (500, "fail")])
def test_the_memory_of_the_host_is_held_to_the_same_rates(
    tmp_path: Path, rate: float, verdict: str
) -> None:
    samples = [Sample("ecc.corrected", t * rate, "", "mc0/dimm1", float(t)) for t in range(90)]
    found = observed(Watch(start=0, end=90, samples=samples), a_gpu(tmp_path))
    judgement = judge_items(CHECK, found)
    assert judgement.verdict.value == verdict
    assert judgement.remedy in (Remedy.NONE, Remedy.INSPECT)


def test_an_error_of_a_cache_during_the_run_fails(tmp_path: Path) -> None:
    samples = counter("ecc.sram.uncorrected", 0, 1)
    found = observed(Watch(start=0, end=2, samples=samples), a_gpu(tmp_path))
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)


def test_a_row_that_is_remapped_under_way_is_a_reason_to_run_again(tmp_path: Path) -> None:
    samples = counter("remap.correctable", 3, 3, 4)
    found = observed(Watch(start=0, end=3, samples=samples), a_gpu(tmp_path))
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.RERUN)
    assert "remap.correctable.delta 1 > 0" in judgement.reason


def test_the_host_and_its_gpus_have_rules_of_their_own(tmp_path: Path) -> None:
    samples = [Sample("ecc.uncorrected", t, "", "mc0/dimm1", t) for t in (0.0, 1.0)]
    found = observed(Watch(start=0, end=1, samples=samples), a_gpu(tmp_path))
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    assert "ecc.host.uncorrected.delta 1" in judgement.reason


@pytest.mark.parametrize(
    ("code", "verdict"),
    [("gpu_lost", Verdict.FAIL), ("gpu_hung", Verdict.ERROR), ("gpu_flaky", None)],
)
def test_a_gpu_that_fell_silent_is_told_with_the_time(
    tmp_path: Path, code: str, verdict: Verdict | None
) -> None:
    samples = counter(code, 1, 1, period=30)
    found = observed(Watch(start=-90, end=60, samples=samples), a_gpu(tmp_path))
    assert judge_items(CHECK, found).verdict is (verdict or Verdict.PASS)
    assert all("90 s into the run" in f.text for f in found if isinstance(f, Finding))


def test_a_gpu_that_answered_nothing_for_a_while_is_noted(tmp_path: Path) -> None:
    samples = [*counter("gpu_mute", 1, 1), *counter("ecc.corrected", 0, 0)]
    found = observed(Watch(start=-3, end=60, samples=samples), a_gpu(tmp_path))
    (note,) = (f for f in found if isinstance(f, Finding))
    assert note.text == "answered no call 3 to 4 s into the run: was it reset meanwhile?"
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_a_first_run_says_that_it_compared_with_none(tmp_path: Path) -> None:
    found = read_gpu(tmp_path, a_gpu(tmp_path), says(ecc__uncorrected__lifetime=7))
    assert judge_items(CHECK, found).verdict is Verdict.PASS
    assert any("no earlier run" in f.text for f in found if isinstance(f, Coverage))
    assert "since" not in str(found)


@pytest.mark.parametrize(
    ("name", "verdict", "remedy"),
    [
        ("ecc.uncorrected.lifetime", "fail", "reset_gpu"),
        ("ecc.sram.uncorrected.lifetime", "fail", "reset_gpu"),
        ("remap.correctable", "warn", "rerun"),
        ("remap.uncorrectable", "warn", "rerun"),
        ("retired.single_bit", "warn", "rerun"),
        ("retired.double_bit", "warn", "rerun"),
        ("ecc.corrected.lifetime", "pass", "none"),
    ],
)
def test_what_is_new_since_the_last_run_counts_once(
    tmp_path: Path, name: str, verdict: str, remedy: str
) -> None:
    answer = says(**{name: 8})
    mark = seen(7, name)
    found = read_gpu(tmp_path, a_gpu(tmp_path, mark), answer)
    judgement = judge_items(CHECK, found)
    assert (judgement.verdict.value, judgement.remedy) == (verdict, remedy)
    rerun = read_gpu(tmp_path, a_gpu(tmp_path, *marks_of(found)), answer)
    assert judge_items(CHECK, rerun).verdict is Verdict.PASS


def test_a_lifetime_counter_that_fell_was_reset_and_counts_from_zero(tmp_path: Path) -> None:
    mark = seen(7)
    for count, expected in ((0, Verdict.PASS), (2, Verdict.FAIL)):
        answer = says(ecc__uncorrected__lifetime=count)
        found = read_gpu(tmp_path, a_gpu(tmp_path, mark), answer)
        assert find_value(found, "ecc.uncorrected.since") == count
        assert judge_items(CHECK, found).verdict is expected


@pytest.mark.parametrize(("errors", "verdict"), [(300, "pass"), (2e7, "warn")])
def test_a_rate_under_the_jobs_of_others_shows_between_two_runs(
    tmp_path: Path, errors: float, verdict: str
) -> None:
    mark = seen(100, "ecc.corrected.lifetime")
    answer = says(ecc__corrected__lifetime=100 + errors)
    found = read_gpu(tmp_path, a_gpu(tmp_path, mark), answer)
    assert judge_items(CHECK, found).verdict.value == verdict
    expected = pytest.approx(errors / HOUR, rel=0.01)
    assert find_value(found, "ecc.corrected.since.rate") == expected


def test_a_single_error_between_two_runs_in_a_row_is_no_rate(tmp_path: Path) -> None:
    mark = seen(0, "ecc.corrected.lifetime", ago=0)
    found = read_gpu(tmp_path, a_gpu(tmp_path, mark), says(ecc__corrected__lifetime=1))
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_counters_of_a_gpu_that_does_not_answer_are_not_forgotten(tmp_path: Path) -> None:
    mark = seen(7)
    lost = Finding("gpu_lost", "GPU-0", "lost")
    found = read_gpu(tmp_path, a_gpu(tmp_path, mark), GpuAnswers(findings=(lost,)))
    assert judge_items(CHECK, found).verdict is Verdict.FAIL
    found = read_gpu(
        tmp_path, a_gpu(tmp_path, *marks_of(found)), says(ecc__uncorrected__lifetime=8)
    )
    assert find_value(found, "ecc.uncorrected.since") == 1


@pytest.mark.parametrize(
    ("mode", "pending", "code", "verdict"),
    [
        (1, 1, None, "pass"),
        (0, 0, "ecc_disabled", "warn"),
        (0, 1, "ecc_reset_due", "warn"),
        (1, 0, "ecc_disabled", "warn"),
    ],
)
def test_memory_that_is_not_protected_is_told(
    tmp_path: Path, mode: float, pending: float, code: str | None, verdict: str
) -> None:
    answer = says(mode, ecc__mode__pending=pending)
    found = read_gpu(tmp_path, a_gpu(tmp_path), answer)
    assert codes(found) == ([code] if code else [])
    assert judge_items(CHECK, found).verdict.value == verdict


def test_no_part_of_the_data_sheets_is_without_ecc(tmp_path: Path) -> None:
    for spec in load_specs():
        ctx = a_gpu(tmp_path, name=spec.name)
        assert judge_items(CHECK, read_gpu(tmp_path, ctx, says())).verdict is Verdict.PASS
        none = read_gpu(tmp_path, ctx, says(None, retired__pending=0))
        assert (codes(none), judge_items(CHECK, none).verdict) == (
            ["ecc_unsupported"],
            Verdict.WARN,
        )


@pytest.mark.parametrize(
    "name",
    ["NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 4000 Ada Generation", "NVIDIA GeForce RTX 4090"],
)
def test_a_workstation_board_may_have_ecc_off_as_it_was_delivered(
    tmp_path: Path, name: str
) -> None:
    ctx = a_gpu(tmp_path, name=name)
    found = read_gpu(tmp_path, ctx, says(0, ecc__mode__pending=0))
    assert (codes(found), judge_items(CHECK, found).verdict) == (
        ["ecc_off_as_delivered"],
        Verdict.PASS,
    )


def test_a_part_that_nobody_knows_need_not_have_ecc(tmp_path: Path) -> None:
    ctx = a_gpu(tmp_path, name="NVIDIA GeForce RTX 3080")
    with pytest.raises(Skip, match="counts memory errors"):
        read_gpu(tmp_path, ctx, says(None))


def test_a_gpu_that_counts_errors_has_ecc_whatever_it_says(tmp_path: Path) -> None:
    found = read_gpu(tmp_path, a_gpu(tmp_path), says(None, ecc__corrected=0))
    assert codes(found) == []


def test_a_gpu_in_trouble_is_not_said_to_lack_ecc(tmp_path: Path) -> None:
    lost = Finding("gpu_lost", "GPU-0", "lost")
    answer = GpuAnswers(answers={"GPU-0": tuple[Reading, ...]()}, findings=(lost,))
    assert codes(read_gpu(tmp_path, a_gpu(tmp_path), answer)) == ["gpu_lost"]


def test_what_a_gpu_cannot_answer_is_listed(tmp_path: Path) -> None:
    root_only = Coverage("GPU-0", "needs root: nvmlDeviceGetSramEccErrorStatus")
    answer = replace(says(), unanswered=(root_only,))
    found = read_gpu(tmp_path, a_gpu(tmp_path), answer)
    assert root_only in found
    assert judge_items(CHECK, found).verdict is Verdict.PASS


def test_retired_pages_are_counted_together(tmp_path: Path) -> None:
    ctx = a_gpu(tmp_path, name="Tesla V100-SXM2-32GB")
    for single, verdict in ((31, Verdict.PASS), (32, Verdict.FAIL)):
        answer = says(retired__single_bit=single, retired__double_bit=31)
        assert judge_items(CHECK, read_gpu(tmp_path, ctx, answer)).verdict is verdict


def on_lab(tmp_path: Path, lab: Lab) -> Context:
    return make_context(tmp_path, inventory=probe(lab))


def test_a_healthy_board_passes_every_time(tmp_path: Path, lab: Lab) -> None:
    lab.load("healthy-8xh100")
    for _ in range(3):
        assert judge_items(CHECK, measured(lab)).faults == ()
    found = observed(lab.watch("healthy-8xh100", 60), on_lab(tmp_path, lab))
    assert len([f for f in found if isinstance(f, Measurement)]) == 8 * 7
    assert judge_items(CHECK, found).faults == ()


def test_errors_that_a_load_brings_out_are_found_on_their_gpus(tmp_path: Path, lab: Lab) -> None:
    watch = lab.watch("ecc-row-remap-failure", 60)
    ctx = on_lab(tmp_path, lab)
    sampled = [part for part, _ in watch.group_by_part("ecc.corrected")]
    found = observed(watch, ctx)
    rates = {
        f.part_id: f.value
        for f in found
        if isinstance(f, Measurement) and f.name == "ecc.corrected.rate" and f.value
    }
    assert list(rates.values()) == [5.0]
    assert rates.keys() < set(sampled)
    judgement = judge_items(CHECK, found)
    assert judgement.verdict is Verdict.FAIL
    assert "ecc.uncorrected.delta 2" in judgement.reason


@pytest.mark.parametrize(
    ("fault", "verdict", "remedy", "reason"),
    [
        ("ecc.mode = 0", "warn", "reset_gpu", "ECC is off until"),
        ("ecc.mode_pending = 0", "warn", "fix_configuration", "next reset"),
        ("ecc.mode = na", "warn", "inspect", "its data sheet lists it"),
        ("remapped_rows.histogram.none = 1", "warn", "contact_vendor", "banks.none 1"),
        ("remapped_rows.histogram.low = 1", "pass", "none", ""),
        ("ecc.volatile.sram_parity = 1", "warn", "reset_gpu", "uncorrected 1"),
        ("ecc.aggregate.dram_uncorrectable = 3", "pass", "none", ""),
    ],
)
def test_each_trace_of_bad_memory_has_its_remedy(
    lab: Lab, fault: str, verdict: str, remedy: str, reason: str
) -> None:
    lab.write(f"gpu.2.{fault}")
    judgement = judge_items(CHECK, measured(lab))
    assert (judgement.verdict.value, judgement.remedy.value) == (verdict, remedy)
    assert reason in judgement.reason


def test_a_gpu_that_was_lost_under_way_fails(lab: Lab) -> None:
    judgement = judge_items(CHECK, measured(lab, "gpu.3.lost = 1"))
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.REBOOT)
    assert "GPU is lost" in judgement.reason


def test_an_error_between_two_runs_is_found_on_its_gpu_and_once(lab: Lab) -> None:
    first = measured(lab)
    lab.write("gpu.5.ecc.aggregate.dram_uncorrectable = 1")
    second = measured(lab, marks=marks_of(first))
    judgement = judge_items(CHECK, second)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
    assert judgement.reason.count("ecc.uncorrected.since 1 > 0") == 1
    assert judge_items(CHECK, measured(lab, marks=marks_of(second))).verdict is Verdict.PASS
