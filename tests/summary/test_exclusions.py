"""Only measurements rule out other causes."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from hpcverify.model import (
    Coverage,
    Inventory,
    Limit,
    Measurement,
    Part,
    Remedy,
    Result,
    Run,
    Verdict,
)
from hpcverify.summary.exclusions import (
    Exclusions,
    PastRun,
    PastVerdict,
    Repetition,
    count_repetition,
    get_facts,
)
from hpcverify.summary.faults import PartFaults, group_by_part, list_run_faults
from hpcverify.testing import judge_by
from tests.doubles import a_run

NIGHTS = [datetime(2026, 11, day, 2, tzinfo=UTC) for day in range(1, 9)]
SICK = "gpu-5"


def gpu(number: int, **facts: str) -> Part:
    known = {
        "name": "H100",
        "pci_address": f"0000:{number}0:00.0",
        "driver": "565",
        "vbios": "96.00",
    }
    return Part("gpu", f"gpu-{number}", f"GPU {number}", known | facts)


PARTS = tuple(map(gpu, range(8)))
NODE = Inventory(parts=PARTS)
SLOWEST = Limit(name="p2p.slowest", low=0.85, source="s")
FLAG = Limit(name="remap.failed", high=0, remedy=Remedy.REPLACE, source="NVIDIA")


def ecc(*failing: str) -> Result:
    flags = [Measurement("remap.failed", float(p.id in failing), "", p.id) for p in PARTS]
    verdict = Verdict.FAIL if failing else Verdict.PASS
    return Result(check="ecc", verdict=verdict, measurements=tuple(flags), limits=(FLAG,))


def night(*results: Result, at: datetime = NIGHTS[-1], node: Inventory = NODE) -> Run:
    verdict = max(r.verdict for r in results)
    return a_run(results=results, verdict=verdict, inventory=node, started=at)


def test_a_part_that_no_longer_answers_has_its_earlier_serial() -> None:
    parts = [replace(p, facts=p.facts | {"serial": p.id[-1] * 3}) for p in PARTS]
    before = Inventory(parts=tuple(parts))
    run, earlier = night(ecc(SICK)), get_facts(SICK, before)

    assert count_repetition(run, [], get_facts(SICK, NODE), earlier).facts == {"serial": "555"}
    assert count_repetition(run, [], {"serial": "7"}, earlier).facts == {"name": "H100"}
    assert count_repetition(run, [], {}, get_facts(SICK, None)).facts == {}


def list_parts(run: Run) -> dict[str, PartFaults]:
    return group_by_part(list_run_faults(run), run.inventory)


def count(run: Run, before: list[PastVerdict]) -> Repetition:
    return count_repetition(run, before, get_facts(SICK, run.inventory), {})


def list_ruled_out(run: Run, past: Repetition | None = None) -> list[str]:
    return Exclusions(run, list_parts(run)).weigh(list_parts(run)[SICK], past)[0]


def list_open_causes(run: Run) -> list[str]:
    return Exclusions(run, list_parts(run)).weigh(list_parts(run)[SICK])[1]


def test_a_part_that_passed_failed_or_was_missing_is_kept_apart() -> None:
    gone = Inventory(parts=tuple(p for p in PARTS if p.id != SICK))

    def of(run: Run) -> PastVerdict | None:
        return PastRun(run).find_verdict(SICK, ("ecc",))

    bad = of(night(ecc(SICK)))
    assert bad is not None
    assert (bad.failed, bad.address) == (True, "0000:50:00.0")
    assert of(night(ecc())) == PastVerdict(started=NIGHTS[-1], failed=False)
    assert of(night(ecc("gpu-2"))) == PastVerdict(started=NIGHTS[-1], failed=False)
    assert of(night(ecc(), node=gone)) is None


def test_a_failure_of_another_check_is_none_of_these() -> None:
    look = PastRun(night(ecc(SICK))).find_verdict(SICK, ("gemm",))

    assert look == PastVerdict(started=NIGHTS[-1], failed=False)


def test_repetitions_are_counted_by_part_with_this_run() -> None:
    now = night(ecc(SICK))
    before = [PastVerdict(started=t, failed=t.day in (3, 6)) for t in NIGHTS[:-1]]

    assert count(now, before) == Repetition(failed=3, runs=8, since=NIGHTS[0], first=NIGHTS[2])


def test_without_a_past_there_is_this_run() -> None:
    now = night(ecc(SICK))

    assert count(now, []) == Repetition(failed=1, runs=1, since=NIGHTS[-1], first=NIGHTS[-1])


def test_who_failed_in_another_slot_too_is_not_failed_by_the_slot() -> None:
    now = night(ecc(SICK))
    there = PastVerdict(started=NIGHTS[0], failed=True, address="0000:20:00.0")
    here = PastVerdict(started=NIGHTS[1], failed=True, address="0000:50:00.0")

    moved = count(now, [there, here])
    stayed = count(now, [here])

    assert list_ruled_out(now, moved)[-1] == "slot: it also failed at 0000:20:00.0"
    assert not any("slot" in reason for reason in list_ruled_out(now, stayed))


def test_all_like_parts_that_passed_rule_out_what_they_share() -> None:
    now = night(ecc(SICK))

    assert list_ruled_out(now) == [
        "the rest of the node: all 7 other GPUs of this model passed ecc",
        "software: they have the same driver 565 and VBIOS 96.00",
    ]
    assert list_open_causes(now) == ["heat", "power supply", "slot"]


def test_a_second_part_that_fails_leaves_a_shared_cause_open() -> None:
    now = night(ecc(SICK, "gpu-2"))

    assert list_ruled_out(now) == []
    assert list_open_causes(now)[:2] == [
        "the rest of the node (6 of 7 other GPUs passed)",
        "software",
    ]


def test_software_that_differs_is_not_ruled_out() -> None:
    other = Inventory(parts=tuple(gpu(i, vbios="97") if i != 5 else gpu(i) for i in range(8)))
    now = night(ecc(SICK), node=other)

    assert list_ruled_out(now)[1:] == ["software: they have the same driver 565"]


def test_parts_that_nobody_looked_at_speak_for_nothing() -> None:
    alone = replace(ecc(SICK), measurements=(Measurement(FLAG.name, 1.0, "", SICK),))
    everybody = night(ecc(*(part.id for part in PARTS)))

    assert list_ruled_out(night(alone)) == []
    assert list_ruled_out(everybody) == []


def soak(**values: float) -> Result:
    found = (
        Measurement("temperature.headroom.min", values["headroom"], "°C", SICK),
        Measurement("throttled.hw_thermal", 0.0, "s", SICK),
        Measurement("throttled.hw_power_brake", values["brake"], "s", SICK),
    )
    limits = (
        Limit(name="temperature.headroom.min", low=2, otherwise=Verdict.WARN),
        Limit(name="throttled.hw_thermal", high=1),
        Limit(name="throttled.hw_power_brake", high=1, otherwise=Verdict.WARN),
    )
    return judge_by(found, limits, inventory=NODE, check="thermal")


def test_heat_and_power_are_ruled_out_by_what_the_soak_measured() -> None:
    now = night(ecc(SICK), soak(headroom=21.0, brake=0.0))

    heat, power = list_ruled_out(now)[2:]
    assert heat.startswith("heat: temperature.headroom.min 21 °C, throttled.hw_thermal")
    assert heat.endswith(", within limits under load")
    assert power.startswith("power supply: throttled.hw_power_brake 0 s, within limits")


def test_a_cause_that_was_seen_is_not_ruled_out() -> None:
    hot = night(ecc(SICK), soak(headroom=1.0, brake=0.0))
    braked = night(ecc(SICK), soak(headroom=21.0, brake=5.0))

    assert not any("heat" in reason for reason in list_ruled_out(hot))
    assert not any("power" in reason for reason in list_ruled_out(braked))


def test_heat_is_not_ruled_out_without_a_measurement() -> None:
    covered = replace(ecc(SICK), coverage=(Coverage(SICK, "read"),))
    now = night(covered)

    assert not any(reason.startswith(("heat", "power")) for reason in list_ruled_out(now))


def test_the_node_itself_has_no_causes_beside_it() -> None:
    found = judge_by([Measurement("p2p.slowest", 0.5, "ratio", "node")], [SLOWEST], {}, NODE, "p2p")
    run = night(replace(found, verdict=Verdict.FAIL))
    parts = list_parts(run)

    assert [*parts] == ["node"]
    assert Exclusions(run, parts).weigh(parts["node"]) == ([], [])
