"""Each fault, by each check that can meet it: the right GPU, cause, remedy and words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcverify.model import Remedy, Run, Verdict
from tests.rehearsal import faults
from tests.rehearsal.clock import HASTE
from tests.rehearsal.node import Node, make_node
from tests.rehearsal.table import REHEARSED, Expected, Rehearsed

pytestmark = pytest.mark.system

NODES_AT_ONCE = 4
"""Most of the time, one that hangs has nothing to do."""
ROWS = tuple((fault, expected) for fault in REHEARSED for expected in fault.expected)


def rehearse(fault: Rehearsed, node: Node) -> Run:
    """Run all checks that can meet *fault* on its *node*."""
    names = [word for expected in fault.expected for word in ("--check", expected.check)]
    return node.run(*names, faults=fault.faults, **{HASTE: str(fault.haste)})


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nvml_library: Path
) -> Iterator[Mapping[str, Future[Run]]]:
    """Begin the runs of all rows that were asked for, some of them beside each other."""
    asked: list[object] = [
        item.callspec.params["fault"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.function is test_a_fault_is_seen_for_what_it_is
    ]
    slow_first = sorted((f for f in REHEARSED if f in asked), key=lambda fault: -fault.haste)
    # Here and not in the threads: pytest changes the environment under them.
    nodes = {
        fault.name: make_node(
            tmp_path_factory.mktemp("node"),
            nvml_library,
            part=fault.part,
            gpus=fault.gpus,
            params=fault.params,
        )
        for fault in slow_first
    }
    with ThreadPoolExecutor(NODES_AT_ONCE) as pool:
        begun = {
            fault.name: pool.submit(rehearse, fault, nodes[fault.name]) for fault in slow_first
        }
        yield begun
        for run in begun.values():
            run.cancel()


def list_accused(reason: str) -> set[int]:
    """List the GPUs of which a clause of *reason* speaks."""
    subjects = re.findall(r"(?:^|; )((?:(?:, )?GPU \d+ \([^)]*\))+):", reason)
    return {int(number) for subject in subjects for number in re.findall(r"GPU (\d+)", subject)}


@pytest.mark.parametrize(
    ("fault", "expected"), ROWS, ids=[f"{fault.name}, {e.check}" for fault, e in ROWS]
)
def test_a_fault_is_seen_for_what_it_is(
    runs: Mapping[str, Future[Run]], fault: Rehearsed, expected: Expected
) -> None:
    run = runs[fault.name].result()
    (result,) = (r for r in run.results if r.check == expected.check)
    told = f"{result.verdict.value} {result.cause.value} {result.remedy.value}: {result.reason}"

    assert result.verdict is expected.verdict, told
    assert (result.remedy, result.cause) == (expected.remedy, expected.cause), told
    assert expected.says in result.reason, told
    assert "wrong_sums" not in {fault.code for fault in result.faults}, told
    named, all_of_them = list_accused(result.reason), set(expected.accused)
    if expected.verdict is Verdict.ERROR and len(all_of_them) > 1:
        # A rank that hears of its peer's failure before it meets its own says only that.
        assert named
        assert named <= all_of_them, told
    else:
        assert named == all_of_them, told


def test_no_fault_of_a_gpu_is_called_one_of_the_checker() -> None:
    remedies = {expected.remedy for _, expected in ROWS}

    assert Remedy.FIX_CHECKER not in remedies


def test_the_table_has_every_fault_of_the_stand_in() -> None:
    kinds = {fault.faults.partition("@")[0] for fault in REHEARSED}

    assert kinds == faults.KINDS


def test_a_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in REHEARSED]

    assert len(set(names)) == len(names)


def test_a_fault_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no fault is called 'flop'"):
        faults.Fault.parse("flop@1")
    with pytest.raises(ValueError, match="no 'often'"):
        faults.Fault.parse("flip@1:often=3")
