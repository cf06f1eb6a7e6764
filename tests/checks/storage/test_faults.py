"""
A disk that goes wrong fails for the right reason, and a sound one passes.

The faults are below fio and the C library (`faulty_disk.c`): what was written is lost,
changed, cut or put elsewhere, and what is read is changed or old. The file system and
hpcverify are the real ones, and know nothing of it.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from hpcverify.model import Measurement, Verdict
from hpcverify.units import MIB
from hpcverify_checks.storage.fio_runner import FaultError, Fio
from hpcverify_checks.storage.params import StorageParams
from hpcverify_checks.storage.phases import LOADS, run_flushes
from tests.checks.storage.disks import flip_below, site
from tests.checks.storage.faulty_disk import SERIAL, Fault, compile_library, take_load

pytestmark = [pytest.mark.system, pytest.mark.needs("fio")]

STREAM, JOURNAL, FILES = "/stream", "/journal", "/files/"
OLDER = "the block holds what write 1 put there, and not what write 2 did"
NO_HEADER = "verify: bad magic header"
ELSEWHERE = "verify: bad header offset"
CHANGED = "crc32c: verify failed"
CUT = "journal ends after"  # the write that went astray was the last one

FAULTS = [
    # 4 KiB at random, over what was written before
    ("blocks", Fault(how="lost", path=STREAM, size=4096), OLDER),
    # which of the two places fio reads first varies, and so does what it says of the other
    (
        "blocks",
        Fault(how="misdirected", path=STREAM, size=4096),
        f"{OLDER}|{ELSEWHERE}|{NO_HEADER}",
    ),
    ("blocks", Fault(how="torn", path=STREAM, size=4096), CHANGED),
    ("blocks", Fault(how="flip write", path=STREAM, size=4096), CHANGED),
    ("blocks", Fault(how="stale read", path=STREAM, size=4096), OLDER),
    ("blocks", Fault(how="exchanged", path=STREAM, count=1, size=4096), ELSEWHERE),
    # 1 MiB in a row, for the first time
    ("blocks", Fault(how="lost", path=STREAM, size=MIB), NO_HEADER),
    ("blocks", Fault(how="misdirected", path=STREAM, size=MIB), f"{NO_HEADER}|{ELSEWHERE}"),
    ("blocks", Fault(how="torn", path=STREAM, size=MIB), NO_HEADER),
    ("blocks", Fault(how="flip write", path=STREAM, size=MIB), CHANGED),
    ("blocks", Fault(how="exchanged", path=STREAM, count=1, size=MIB), ELSEWHERE),
    ("blocks", Fault(how="flip read", path=STREAM, size=MIB), CHANGED),
    ("blocks", Fault(how="flip read", path=STREAM, size=4096), CHANGED),
    # 1 MiB in a row, over what was written before
    ("checkpoints", Fault(how="lost", path=STREAM, overwrites=True), OLDER),
    ("checkpoints", Fault(how="torn", path=STREAM, overwrites=True), OLDER),
    ("checkpoints", Fault(how="stale read", path=STREAM, overwrites=True), OLDER),
    ("checkpoints", Fault(how="flip write", path=STREAM, overwrites=True), CHANGED),
    ("checkpoints", Fault(how="flip read", path=STREAM), CHANGED),
    ("checkpoints", Fault(how="misdirected", path=STREAM, overwrites=True), f"{OLDER}|{ELSEWHERE}"),
    ("checkpoints", Fault(how="exchanged", path=STREAM, count=1, overwrites=True), ELSEWHERE),
    # 4 KiB flushed one by one
    ("flushes", Fault(how="lost", path=JOURNAL, skip=1, count=1), f"{NO_HEADER}|{CUT}"),
    ("flushes", Fault(how="lost", path=JOURNAL, skip=1, count=10**6), "/journal ends after 4096 "),
    ("flushes", Fault(how="lost", path=JOURNAL, skip=0, overwrites=True), OLDER),
    ("flushes", Fault(how="torn", path=JOURNAL, skip=0, overwrites=True), CHANGED),
    ("flushes", Fault(how="stale read", path=JOURNAL, skip=0, overwrites=True), OLDER),
    ("flushes", Fault(how="misdirected", path=JOURNAL), f"{NO_HEADER}|{ELSEWHERE}|{CUT}"),
    ("flushes", Fault(how="flip write", path=JOURNAL, skip=0), CHANGED),
    ("flushes", Fault(how="flip read", path=JOURNAL, skip=0), CHANGED),
    # files of 4 KiB
    ("small_files", Fault(how="removed", path=FILES), r"files/\d+ is lost"),
    ("small_files", Fault(how="cut", path=FILES, skip=1), r"has 2048 of 4096 bytes"),
    ("small_files", Fault(how="lost", path=FILES, skip=1), r"has 0 of 4096 bytes"),
    (
        "small_files",
        Fault(how="lost", path=FILES, overwrites=True),
        "holds what was written before",
    ),
    ("small_files", Fault(how="stale read", path=FILES, overwrites=True), "written before"),
    ("small_files", Fault(how="torn", path=FILES, skip=1), r"differs in \d+ bytes"),
    (
        "small_files",
        Fault(how="flip write", path=FILES, skip=1),
        r"differs in 1 byte: .* \(bits 2\)",
    ),
    ("small_files", Fault(how="flip read", path=FILES), r"differs in 1 byte: .* \(bits 2\)"),
    ("small_files", Fault(how="exchanged", path=FILES), r"holds the data of \S+/files/\d+"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def scratch(disk: Path) -> Path:
    folder = disk / "scratch"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("load", "fault", "said"),
    FAULTS,
    ids=[f"{load}: {f.how} {f.size}{' again' * f.overwrites} {f.count}" for load, f, _ in FAULTS],
)
def test_a_disk_that_goes_wrong_fails_for_what_it_did(
    scratch: Path, library: Path, load: str, fault: Fault, said: str
) -> None:
    taken = take_load(load, scratch, fault=fault, library=library)

    assert (scratch.parent / "log").read_text().startswith(fault.how)  # it was injected
    (finding,) = taken.findings
    assert (finding.code, taken.verdict) == ("corruption", Verdict.FAIL)
    assert finding.part_id == SERIAL
    assert finding.evidence["mount"] == str(scratch.parent)
    assert re.search(said, finding.text), finding.text


@pytest.mark.parametrize("load", [load.__name__.removeprefix("run_") for _, load in LOADS])
def test_the_same_disk_without_a_fault_passes(scratch: Path, library: Path, load: str) -> None:
    taken = take_load(load, scratch, library=library)

    assert (taken.verdict, taken.findings) == (Verdict.PASS, [])
    assert "read past the page cache" in taken.coverage[0]
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("load", "path"), [("blocks", STREAM), ("checkpoints", STREAM), ("small_files", FILES)]
)
def test_a_read_that_gives_a_part_is_read_on_and_no_fault(
    scratch: Path, library: Path, load: str, path: str
) -> None:
    short = Fault(how="short read", path=path, skip=0, count=3)
    taken = take_load(load, scratch, fault=short, library=library)

    assert (scratch.parent / "log").exists()  # it was injected
    assert (taken.verdict, taken.findings) == (Verdict.PASS, [])


def test_a_stall_is_measured(scratch: Path, library: Path) -> None:
    stall = Fault(how="stall", path=JOURNAL, count=1)
    taken = take_load("flushes", scratch, fault=stall, library=library)

    assert (taken.verdict, taken.findings) == (Verdict.PASS, [])
    assert (taken.measured["fsync.longest"] or 0) >= 1


def test_what_a_journal_holds_is_read_from_the_disk_and_not_from_the_page_cache(
    disk: Path, image: Path, fio: Fio, rng: random.Random
) -> None:
    params = StorageParams(seconds=0.2)
    found = run_flushes(site(disk), fio, params, rng)
    flushed = next(i for i in found if isinstance(i, Measurement) and i.name == "fsync.longest")
    journal = disk / "journal"
    right = journal.read_bytes()
    flip_below(image, journal, at=1000)
    assert flushed.value
    assert journal.read_bytes() == right  # so the page cache has the right bytes

    with pytest.raises(FaultError, match="crc32c: verify failed at file journal offset 0"):
        list(found)
