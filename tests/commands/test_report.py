"""A report counts how often each part has failed, from the runs that are kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.commands.report import MAX_READ_DOCUMENTS, add_actions, count_repetitions
from hpcverify.model import Inventory, Limit, Measurement, Part, Remedy, Result, Run, Verdict
from hpcverify.records import documents
from hpcverify.records.store import Store
from hpcverify.summary.exclusions import Repetition
from hpcverify.summary.printable import format_json
from tests.doubles import a_run

FIRST = datetime(2026, 10, 1, 2, tzinfo=UTC)
FLAG = Limit(name="remap.failed", high=0, remedy=Remedy.REPLACE, source="NVIDIA")


def gpus(slots: dict[str, str]) -> Inventory:
    return Inventory(
        parts=tuple(
            Part("gpu", name, name.upper(), {"pci_address": slot, "name": "H100"})
            for name, slot in slots.items()
        )
    )


NODE = gpus({"gpu-a": "0000:18:00.0", "gpu-b": "0000:2a:00.0"})
SWAPPED = gpus({"gpu-a": "0000:2a:00.0", "gpu-b": "0000:18:00.0"})
WITHOUT = gpus({"gpu-b": "0000:2a:00.0"})


def night(number: int, *failing: str, node: Inventory = NODE) -> Run:
    flags = tuple(
        Measurement(FLAG.name, float(part.id in failing), "", part.id) for part in node.parts
    )
    verdict = Verdict.FAIL if failing else Verdict.PASS
    ecc = Result(check="ecc", verdict=verdict, measurements=flags, limits=(FLAG,))
    started = FIRST + timedelta(days=number)
    return a_run(
        id=f"{started:%Y%m%d}-000000-abcdef",
        started=started,
        results=(ecc,),
        verdict=verdict,
        inventory=node,
    )


def kept(folder: Path, *runs: Run) -> Store:
    store = Store(folder)
    for run in runs:
        documents.write(run, store.get_document_path(run.id))
    return Store(folder)


def day(number: int) -> datetime:
    return FIRST + timedelta(days=number)


def test_failures_are_counted_by_part_over_the_runs_that_had_it(tmp_path: Path) -> None:
    now = night(9, "gpu-a")
    store = kept(
        tmp_path,
        night(0, node=WITHOUT),
        night(1, "gpu-b", node=WITHOUT),
        night(2),
        night(3, "gpu-a", "gpu-b"),
        night(4, "gpu-b"),
        night(5),
        night(6, "gpu-a"),
        now,
    )

    assert count_repetitions(now, store) == {
        "gpu-a": Repetition(failed=3, runs=6, since=day(2), first=day(3))
    }


def test_a_part_that_did_not_fail_now_is_not_counted(tmp_path: Path) -> None:
    now = night(9)
    assert count_repetitions(now, kept(tmp_path, night(1, "gpu-a"), now)) == {}


def test_the_past_begins_where_it_is_asked_to(tmp_path: Path) -> None:
    now = night(9, "gpu-a")
    store = kept(tmp_path, night(1, "gpu-a"), night(5), now)
    (found,) = count_repetitions(now, store, day(4).replace(tzinfo=None)).values()
    assert (found.failed, found.runs, found.since) == (1, 2, day(5))


def test_a_document_that_is_gone_is_told_and_not_counted(tmp_path: Path) -> None:
    now, lost = night(9, "gpu-a"), night(3, "gpu-a")
    store = kept(tmp_path, lost, night(5, "gpu-a"), now)
    store.get_document_path(lost.id).unlink()
    (found,) = count_repetitions(now, store).values()

    assert (found.failed, found.runs) == (2, 2)
    assert lost.id in "".join(store.warnings)


def test_no_more_documents_are_read_than_a_report_can_wait_for(tmp_path: Path) -> None:
    now = night(MAX_READ_DOCUMENTS + 9, "gpu-a")
    runs = [night(n, "gpu-a") for n in range(MAX_READ_DOCUMENTS + 5)]
    (found,) = count_repetitions(now, kept(tmp_path, *runs, now)).values()
    assert (found.failed, found.runs) == (MAX_READ_DOCUMENTS + 1, MAX_READ_DOCUMENTS + 1)
    assert found.since == day(5)


def test_the_json_has_the_document_and_what_to_do_about_which_part(tmp_path: Path) -> None:
    now = night(9, "gpu-a", node=SWAPPED)
    store = kept(tmp_path, night(3, "gpu-a"), now)
    told = json.loads(format_json(add_actions(now, store, None)))
    document = json.loads(store.get_document_path(now.id).read_text())
    (action,) = told.pop("actions")
    (part,) = action["parts"]

    assert told == document
    assert (action["verdict"], action["remedy"]) == ("fail", "replace")
    assert (part["part_id"], part["facts"]["pci_address"]) == ("gpu-a", "0000:2a:00.0")
    assert part["past"]["failed"] == part["past"]["runs"] == 2
    assert part["ruled_out"] == [
        "the rest of the node: the other one of this model passed ecc",
        "slot: it also failed at 0000:18:00.0",
    ]


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_another_node_with_the_part_is_another_past(tmp_path: Path, node: str) -> None:
    now = night(9, "gpu-a")
    before = replace(night(3, "gpu-a"), node=node)
    (found,) = count_repetitions(now, kept(tmp_path, before, now)).values()
    assert found.failed == (2 if node == now.node else 1)
