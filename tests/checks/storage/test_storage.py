"""
The disk's faults are found, each for what it is, and a sound disk has none.

The disk is a real ext4 on a loop device: a byte is changed under it, its blocks are
taken away, it is filled and mounted read-only. fio is the real one.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from hpcverify.check import Skip, Unable
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Inventory,
    Limit,
    Measurement,
    Part,
    Remedy,
    Series,
    Verdict,
)
from hpcverify.telemetry.smart import Health
from hpcverify.testing import INVENTORY, judge_by, judge_items, list_findings, make_context
from hpcverify.units import GIB, MIB, UNIT_FACTORS
from hpcverify_checks.storage import CHECK, fio_runner, jobs, measure, report_health
from hpcverify_checks.storage.explain import explain_fault
from hpcverify_checks.storage.extents import SECTOR_BYTES, FileExtent, cut_to, lay_out
from hpcverify_checks.storage.fio_runner import FaultError, Fio, FioReport
from hpcverify_checks.storage.jobs import (
    read_back,
    read_overwritten,
    read_random,
    write,
    write_random,
)
from hpcverify_checks.storage.params import StorageParams
from hpcverify_checks.storage.phases import run_phases, run_small_files
from hpcverify_checks.storage.scratch import (
    describe_site,
    find_network_of_image,
    find_site,
    query_space,
    require_space,
    require_writable,
)
from hpcverify_checks.storage.small_files import CallTimes
from tests.checks.storage.disks import ACCESSES, CountedFio, formatted, mounted, site
from tests.telemetry.trees import grow

pytestmark = pytest.mark.needs("fio")

SHORT = StorageParams(size_mib=8, checkpoint_mib=4, repeats=2, seconds=0.2, streams=2, files=50)


def filled(fio: Fio, rng: random.Random, mib: int = 8) -> tuple[FileExtent, ...]:
    room = lay_out(fio.folder, mib * MIB, 2, rng)
    return cut_to(room, write(fio, room, rng).list_moved_bytes("write"))


def flip(extent: FileExtent, at: int) -> None:
    file = os.open(extent.path, os.O_RDWR)
    try:
        (byte,) = os.pread(file, 1, extent.offset + at)
        os.pwrite(file, bytes([byte ^ 1]), extent.offset + at)
        os.fsync(file)
    finally:
        os.close(file)


def measured(found: list[CheckItem]) -> dict[str, Measurement]:
    return {item.name: item for item in found if isinstance(item, Measurement)}


def covered(found: list[CheckItem]) -> str:
    return "\n".join(item.text for item in found if isinstance(item, Coverage))


# The whole check


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[list[CheckItem]]:
    """Run the whole check twice on a sound disk."""
    folder = tmp_path_factory.mktemp("sound")
    with mounted("-o", "loop", formatted(folder), folder / "disk") as disk:
        contexts = [make_context(folder, scratch=disk, seed=seed) for seed in range(2)]
        found = [list(measure(ctx, SHORT)) for ctx in contexts]
        assert {path.name for path in disk.iterdir()} == {"lost+found"}  # nothing left
    return found


def test_checkpoints_that_a_busy_disk_spreads_are_shown_and_not_judged() -> None:
    numbers = [
        Measurement(f"checkpoint.{way}.cv", 2.5, "ratio", "S1") for way in fio_runner.DIRECTIONS
    ]
    assert judge_items(CHECK, numbers).verdict is Verdict.PASS


@pytest.mark.system
def test_a_sound_disk_has_no_findings_each_time(runs: list[list[CheckItem]]) -> None:
    assert [list_findings(found) for found in runs] == [[], []]


@pytest.mark.system
def test_a_sound_disk_is_covered_each_time(runs: list[list[CheckItem]]) -> None:
    for found in runs:
        assert "8.0 MiB in 2 streams written, read back and verified" in covered(found)
        assert "2 checkpoints of 4 MiB" in covered(found)


@pytest.mark.system
def test_every_metric_is_measured_in_its_unit(runs: list[list[CheckItem]]) -> None:
    found = measured(runs[0])

    elsewhere = ("cached.", "*", "smart.")
    assert {n for n in CHECK.metrics if not n.startswith(elsewhere)} <= found.keys()
    for name, item in found.items():
        metric = CHECK.find_metric(name)
        assert metric is not None
        assert metric.unit == item.unit in UNIT_FACTORS
        assert item.value is not None
        assert item.value >= 0


@pytest.mark.system
def test_every_rule_meets_a_measurement(runs: list[list[CheckItem]]) -> None:
    rules = [p for p in CHECK.rules if not p.startswith(("smart.", "remote."))]

    for pattern in rules:
        assert any(fnmatchcase(name, pattern) for name in measured(runs[0])), pattern


@pytest.mark.system
def test_the_repeats_of_a_checkpoint_are_shown_one_by_one(runs: list[list[CheckItem]]) -> None:
    series = [item for item in runs[0] if isinstance(item, Series)]

    assert [s.name for s in series] == ["checkpoint.read", "checkpoint.write"]
    assert all(len(s.values) == len(s.t) == SHORT.repeats for s in series)


def test_a_bit_that_flips_under_the_check_fails_the_disk(tmp_path: Path, disk: Path) -> None:
    found: list[CheckItem] = []
    for item in measure(make_context(tmp_path, scratch=disk), SHORT):
        found.append(item)
        if isinstance(item, Measurement) and item.name == "seq_write.longest":
            (stream, *_) = disk.glob("stream*")
            size = stream.stat().st_size
            flip(FileExtent(stream, size - MIB, MIB), at=12345)

    (finding,) = list_findings(found)
    judged = judge_by([finding], [], CHECK.finding_rules)
    assert (judged.verdict, judged.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert "crc32c: verify failed" in finding.text
    assert finding.evidence["read again"] == str(finding.text).partition(": ")[2]
    assert "seq_read.bandwidth" not in measured(found)
    assert "SMART cannot be read" in covered(found)


@pytest.mark.system
def test_where_a_file_system_is_memory_its_speeds_are_not_judged(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "-o", "size=2G", "tmpfs", tmp_path / "m") as point:
        found = list(measure(make_context(tmp_path, scratch=point), SHORT))

    assert "not direct: tmpfs is memory" in covered(found)
    assert all(name.startswith("cached.") for name in measured(found))
    judged = [p for p in CHECK.rules for n in measured(found) if fnmatchcase(n, p)]
    assert judged == []


@pytest.mark.system
def test_what_is_measured_is_the_disk_that_holds_the_scratch_directory(
    tmp_path: Path, disk: Path
) -> None:
    loop = find_site(disk, INVENTORY, direct=True).disk
    part = Part(kind="disk", id="SERIAL", label=str(loop))
    other = Part(kind="disk", id="OTHER", label="sdz")
    inventory = Inventory(parts=(other, part))
    tiny = StorageParams(size_mib=1, checkpoint_mib=1, repeats=2, seconds=0.1, files=1)

    ctx = make_context(tmp_path, scratch=disk, inventory=inventory)
    found = list(measure(ctx, tiny))

    assert {item.part_id for item in found} == {"SERIAL"}
    assert f"{disk} (ext4 on /dev/{loop}, {loop}), past the page cache" in covered(found)


def test_without_fio_the_check_is_skipped_and_names_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(Skip, match=r"apt-get install fio$") as caught:
        list(measure(make_context(tmp_path), SHORT))

    assert caught.value.cause is Cause.NOT_OBSERVABLE


def test_a_file_system_that_is_too_small_is_not_touched(tmp_path: Path) -> None:
    with (
        mounted("-t", "tmpfs", "-o", "size=64M", "tmpfs", tmp_path / "m") as point,
        pytest.raises(Unable, match="64 MiB free; the test needs 64 MiB and leaves") as caught,
    ):
        list(measure(make_context(tmp_path, scratch=point), SHORT))

    assert caught.value.cause is Cause.NO_SPACE


def test_the_disk_below_a_scratch_that_is_not_mounted_is_not_loaded(tmp_path: Path) -> None:
    def on(mount: str, disk: str) -> Inventory:
        facts = {"mount": mount, "type": "ext4", "disk": disk}
        return Inventory(parts=(Part("mount", "mount-/scratch", "/scratch", facts),))

    below, previous = on("/", "eui.1"), on("/scratch", "eui.2")
    ctx = make_context(tmp_path, inventory=below, previous=previous)
    with pytest.raises(Unable, match="mount it again") as caught:
        next(measure(ctx, SHORT))

    assert caught.value.cause is Cause.MISCONFIGURED
    assert list(ctx.scratch.iterdir()) == []


def test_a_read_only_file_system_is_denied(tmp_path: Path, image: Path) -> None:
    with (
        mounted("-o", "loop,ro", image, tmp_path / "disk") as point,
        pytest.raises(Unable, match="cannot be written") as caught,
    ):
        list(measure(make_context(tmp_path, scratch=point), SHORT))

    assert caught.value.cause is Cause.DENIED


# Wrong data


def test_what_was_written_reads_back_each_time(fio: Fio, rng: random.Random) -> None:
    for _ in range(2):
        extents = filled(fio, rng)

        assert sum(read_back(fio, extents).list_moved_bytes("read")) == 8 * MIB


@pytest.mark.system
def test_a_flipped_bit_is_found_wherever_it_is(fio: Fio, rng: random.Random) -> None:
    extents = filled(fio, rng, mib=2)
    for at in (0, 5, 100, 4095, MIB - 1):
        flip(extents[1], at)

        with pytest.raises(FaultError) as caught:
            read_back(fio, extents)

        assert caught.value.number == errno.EILSEQ
        assert caught.value.evidence["read again"] == str(caught.value)
        flip(extents[1], at)
    read_back(fio, extents)


class FlipsEachTime(CountedFio):
    """A disk of which every other answer is wrong."""

    def run(
        self,
        extents: Sequence[FileExtent],
        *,
        seed: int = 0,
        seconds: float = 0.0,
        own: Sequence[Mapping[str, object]] = (),
        **options: object,
    ) -> FioReport:
        flip(extents[0], at=99)
        return super().run(extents, seed=seed, seconds=seconds, own=own, **options)


def test_wrong_data_that_are_right_when_read_again_are_told_from_those_on_the_disk(
    fio: Fio, rng: random.Random
) -> None:
    extents = filled(fio, rng)
    flaky = FlipsEachTime(folder=fio.folder, engine=fio.engine, direct=True)

    with pytest.raises(FaultError, match="crc32c: verify failed") as caught:
        read_back(flaky, extents)

    assert caught.value.evidence["read again"] == "clean"


def test_a_lost_write_is_found_though_what_it_left_has_a_good_checksum(
    fio: Fio, rng: random.Random
) -> None:
    extents = filled(fio, rng)
    lost = [replace(extent, offset=extent.offset + 512 * MIB) for extent in extents]
    for old, new in zip(extents, lost, strict=True):
        file = os.open(old.path, os.O_RDWR)
        os.pwrite(file, os.pread(file, old.size, old.offset), new.offset)
        os.close(file)

    with pytest.raises(FaultError, match="verify: bad header offset"):
        read_back(fio, lost)


def test_random_writes_read_back_each_time(fio: Fio, rng: random.Random) -> None:
    for _ in range(2):
        # Filled anew: of the blocks that are overwritten, each time may reach only some.
        extents = filled(fio, rng)
        wrote, overwritten = write_random(fio, extents, rng, seconds=0.02)

        assert sum(wrote.list_moved_bytes("write")) > 0
        assert sum(read_overwritten(fio, overwritten).list_moved_bytes("read")) >= 8 * MIB


def test_reads_that_were_in_flight_when_their_trace_ended_are_made_again(
    fio: Fio, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, overwritten = write_random(fio, filled(fio, rng), rng, seconds=0.02)
    late = iter([False])
    has_read = jobs._has_read
    monkeypatch.setattr(jobs, "_has_read", lambda *told: next(late, has_read(*told)))

    assert sum(read_overwritten(fio, overwritten).list_moved_bytes("read")) >= 8 * MIB
    assert list(late) == []


@pytest.mark.system
def test_each_block_is_expected_of_the_write_that_it_was_last_written_by(
    fio: Fio, rng: random.Random
) -> None:
    extents = filled(fio, rng, mib=64)
    _, (written, other) = write_random(fio, extents, rng, seconds=0.02)
    assert written.count == ACCESSES < len(written.again)

    read_overwritten(fio, [written, other])
    for sector, said in ((written.again.index(1), 0), (written.again.index(0), 1)):
        wrong = bytearray(written.again)
        wrong[sector] = said
        place = written.extent.offset + sector * SECTOR_BYTES
        with pytest.raises(FaultError, match=f"bad magic header .* offset {place}, length 4096"):
            read_overwritten(fio, [replace(written, again=bytes(wrong)), other])


def test_an_overwrite_that_is_lost_is_told_from_other_wrong_data(
    fio: Fio, rng: random.Random
) -> None:
    extents = filled(fio, rng, mib=2)
    again = [extent.write_again() for extent in extents]
    with pytest.raises(FaultError) as caught:
        read_back(fio, again)

    assert caught.value.evidence["holds"] == "what write 1 put there, and not what write 2 did"
    write(fio, again, rng)
    read_back(fio, again)


def test_a_random_read_verifies(fio: Fio, rng: random.Random) -> None:
    extents = filled(fio, rng, mib=2)
    assert sum(read_random(fio, extents, rng, 0).list_moved_bytes("read")) == 2 * MIB
    flip(extents[0], at=777)

    with pytest.raises(FaultError, match="crc32c: verify failed"):
        read_random(fio, extents, rng, 0)


def test_a_write_that_is_cut_short_is_read_back_as_far_as_it_went(
    fio: Fio, rng: random.Random
) -> None:
    room = lay_out(fio.folder, 2 * (ACCESSES + 4) * MIB, 2, rng)
    wrote = write(fio, room, rng, seconds=0.05)
    extents = cut_to(room, wrote.list_moved_bytes("write"))

    assert [extent.size for extent in extents] == [ACCESSES * MIB] * 2
    assert read_back(fio, extents).list_moved_bytes("read") == tuple(e.size for e in extents)


def test_each_pass_writes_other_data_at_another_place(fio: Fio, rng: random.Random) -> None:
    first, second = filled(fio, rng, mib=2)[0], filled(fio, rng, mib=2)[0]

    assert first.offset != second.offset
    with second.path.open("rb") as file:
        contents = {file.seek(e.offset) and file.read(e.size) for e in (first, second)}
    assert len(contents) == 2


def test_a_colon_in_the_scratch_directory_is_no_list_of_files(
    disk: Path, rng: random.Random
) -> None:
    folder = disk / "a:b"
    folder.mkdir()
    fio = Fio(folder=folder, engine=fio_runner.find_engine(), direct=True)

    read_back(fio, filled(fio, rng, mib=2))

    assert {path.name for path in folder.iterdir()} == {"stream0", "stream1"}


# Errors of the disk and of the directory


def test_a_disk_that_cannot_read_its_blocks_fails_for_that(
    tmp_path: Path, disk: Path, image: Path
) -> None:
    found: list[CheckItem] = []
    for item in measure(make_context(tmp_path, scratch=disk), SHORT):
        found.append(item)
        if isinstance(item, Measurement) and item.name == "seq_write.longest":
            os.truncate(image, MIB)  # the blocks are gone from under the mount

    (finding,) = list_findings(found)
    judged = judge_by([finding], [], CHECK.finding_rules)
    assert (finding.code, judged.verdict) == ("io_error", Verdict.FAIL)
    assert "Input/output error" in finding.text
    assert "err=5" in finding.evidence["fio"]


def test_a_file_system_that_runs_full_is_no_fault_of_the_disk(
    tmp_path: Path, rng: random.Random
) -> None:
    with mounted("-t", "tmpfs", "-o", "size=4M", "tmpfs", tmp_path / "m") as point:
        fio = Fio(folder=point, engine=fio_runner.find_engine(), direct=False)
        with pytest.raises(FaultError) as caught:
            filled(fio, rng)

    with pytest.raises(Unable, match="filled up") as refused:
        explain_fault(caught.value, site())
    assert refused.value.cause is Cause.NO_SPACE


def test_a_file_system_that_runs_out_of_files_is_no_fault_of_the_disk(
    tmp_path: Path, rng: random.Random
) -> None:
    options = "size=4M,nr_inodes=40"
    with mounted("-t", "tmpfs", "-o", options, "tmpfs", tmp_path / "m") as point:
        fio = Fio(folder=point, engine="", direct=False)
        with pytest.raises(OSError, match="No space left") as caught:
            list(run_small_files(site(point), fio, SHORT, rng))

    assert caught.value.errno == errno.ENOSPC


def test_a_file_that_somebody_removes_meanwhile_is_no_fault_of_the_disk(
    disk: Path, fio: Fio, rng: random.Random
) -> None:
    phases = run_phases(site(disk), fio, SHORT, rng)
    next(item for item in phases if getattr(item, "name", "") == "seq_write.longest")
    (disk / "stream0").unlink()

    with pytest.raises(Unable, match="stream0 was removed while the check ran") as caught:
        list(phases)

    assert caught.value.cause is Cause.MISCONFIGURED


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.EILSEQ, "ext4", "corruption"),
        (errno.EIO, "ext4", "io_error"),
        (errno.EROFS, "xfs", "io_error"),
        (errno.ENODATA, "xfs", "io_error"),
        (errno.EILSEQ, "lustre", "remote_corruption"),
        (errno.EIO, "nfs4", "remote_io_error"),
        (errno.EIO, "fuse.sshfs", "remote_io_error"),
        (errno.ESTALE, "nfs4", "remote_io_error"),
        (errno.ENOTCONN, "fuse.sshfs", "remote_io_error"),
        (errno.ESHUTDOWN, "lustre", "remote_io_error"),
    ],
)
def test_an_error_is_named_for_what_it_is_and_whose(number: int, kind: str, code: str) -> None:
    finding = explain_fault(FaultError(number, "said"), site(kind=kind))

    assert (finding.code, finding.part_id) == (code, "S1")
    assert code in CHECK.finding_rules


def test_only_what_is_the_nodes_own_fails_the_node() -> None:
    verdicts = {code: ruling.verdict for code, ruling in CHECK.finding_rules.items()}

    assert verdicts == {
        "corruption": Verdict.FAIL,
        "io_error": Verdict.FAIL,
        "remote_corruption": Verdict.ERROR,
        "remote_io_error": Verdict.ERROR,
        "drive_failing": Verdict.FAIL,
        "drive_temperature": Verdict.WARN,
        "drive_worn": Verdict.WARN,
        "drive_warning": Verdict.WARN,
        "drive_warning_undefined": Verdict.PASS,
    }


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ESTALE])
def test_an_error_that_nobody_knows_is_not_made_into_a_fault_of_the_disk(number: int) -> None:
    with pytest.raises(FaultError):
        explain_fault(FaultError(number, "said"), site())


@pytest.mark.parametrize(
    ("number", "cause", "fix"),
    [
        (errno.EAGAIN, Cause.NO_RESOURCES, "fs.aio-max-nr"),
        (errno.ENOMEM, Cause.NO_RESOURCES, "the memory limit of the job's cgroup"),
        (errno.EMFILE, Cause.NO_RESOURCES, "raise ulimit -n"),
        (errno.EFBIG, Cause.MISCONFIGURED, "raise ulimit -f"),
    ],
)
def test_what_the_node_is_short_of_is_no_fault_of_the_disk(
    number: int, cause: Cause, fix: str
) -> None:
    with pytest.raises(Unable, match=fix) as caught:
        explain_fault(FaultError(number, "said"), site())

    assert caught.value.cause is cause


def test_a_permission_that_is_lost_meanwhile_is_denied() -> None:
    with pytest.raises(Unable) as caught:
        explain_fault(FaultError(errno.EACCES, "said"), site())

    assert caught.value.cause is Cause.DENIED


def test_what_fio_does_not_understand_is_a_bug_of_ours(fio: Fio) -> None:
    with pytest.raises(RuntimeError, match="fio ended with 1"):
        fio.run([FileExtent(fio.folder / "x", 0, MIB)], rw="nonsense")


def standing_in_for_fio(folder: Path, script: str) -> str:
    """Put *script* where fio is looked for; what it calls by itself is found behind."""
    (folder / "fio").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "fio").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


NO_THREADS = """\
pthread_create: Resource temporarily unavailable
fio: 1 job failed to start
"""
"""What fio 3.33 printed where a limit left it no process, before kill(0, SIGTERM)."""


@pytest.mark.parametrize(
    ("script", "cause", "said"),
    [
        ("kill -KILL $$", Cause.CRASHED, "fio was killed by SIGKILL: .* OOM killer"),
        (
            f"printf '{NO_THREADS}' >&2; exit 128",
            Cause.NO_RESOURCES,
            "fio could not start its threads .* pids limit",
        ),
    ],
    ids=["killed", "no threads"],
)
def test_what_the_node_did_to_fio_is_no_bug_and_no_fault_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, cause: Cause, said: str
) -> None:
    monkeypatch.setenv("PATH", standing_in_for_fio(tmp_path, script))
    fio = Fio(folder=tmp_path, engine="libaio", direct=False)

    with pytest.raises(Unable, match=said) as caught:
        fio.run([FileExtent(tmp_path / "x", 0, MIB)], rw="write")

    assert (caught.value.cause, caught.value.remedy) == (cause, Remedy.INSPECT)


IDLE = {way: {"io_bytes": 0} for way in fio_runner.DIRECTIONS}


def test_a_fio_that_got_no_time_for_an_access_gets_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = (
        json.dumps({"jobs": [{"error": 0, **IDLE, "write": {"io_bytes": moved}}]}, indent=1)
        for moved in (0, 4096)
    )
    idle, busy = reports
    script = f"""\
case "$*" in
*--runtime=200ms*) echo '{idle}' ;;
*--runtime=400ms*) echo '{busy}' ;;
esac"""
    monkeypatch.setenv("PATH", standing_in_for_fio(tmp_path, script))
    fio = Fio(folder=tmp_path, engine="libaio", direct=False)

    report = fio.run([FileExtent(tmp_path / "x", 0, MIB)], seconds=0.2, rw="write")

    assert report.list_moved_bytes("write") == (4096,)


def test_a_fio_that_never_gets_time_says_nothing_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = json.dumps({"jobs": [{"error": 0, **IDLE}]}, indent=1)
    monkeypatch.setenv("PATH", standing_in_for_fio(tmp_path, f"echo '{idle}'"))
    fio = Fio(folder=tmp_path, engine="libaio", direct=False)

    with pytest.raises(
        Unable, match="made no access within 16 s: run this on a quieter node"
    ) as caught:
        fio.run([FileExtent(tmp_path / "x", 0, MIB)], seconds=1, rw="write")

    assert caught.value.cause is Cause.TIMEOUT


def test_a_fio_that_a_limit_keeps_from_starting_lacks_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("fio")
    limited = f'ulimit -v 50000; exec {real} "$@"'
    monkeypatch.setenv("PATH", standing_in_for_fio(tmp_path, limited))

    with pytest.raises(Unable, match=r"fio does not start .*ulimit") as caught:
        fio_runner.find_engine()

    assert caught.value.cause is Cause.MISCONFIGURED


def test_a_fio_that_is_killed_as_it_starts_has_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", standing_in_for_fio(tmp_path, "kill -KILL $$"))

    with pytest.raises(Unable, match="killed by SIGKILL") as caught:
        fio_runner.find_engine()

    assert caught.value.cause is Cause.CRASHED


# Room, engine and place


@pytest.mark.parametrize(
    ("total", "free", "enough"),
    [
        (10 * GIB, GIB + 100 * MIB, True),
        (10 * GIB, GIB + 100 * MIB - 1, False),
        (100 * GIB, 5 * GIB + 100 * MIB, True),
        (100 * GIB, 5 * GIB + 100 * MIB - 1, False),
        (100 * 1024 * GIB, 32 * GIB + 100 * MIB, True),
    ],
)
def test_a_reserve_is_left_free(total: int, free: int, *, enough: bool) -> None:
    expected = nullcontext() if enough else pytest.raises(Unable, match="the test needs 100 MiB ")
    with expected:
        require_space(Path("/scratch"), 100 * MIB, total, free)


def test_what_is_kept_for_root_is_not_free(disk: Path) -> None:
    answer = os.statvfs(disk)

    assert query_space(disk)[1] == answer.f_bavail * answer.f_bsize
    assert answer.f_bavail < answer.f_bfree


def test_a_file_system_without_direct_access_is_found_out(tmp_path: Path, disk: Path) -> None:
    with mounted("-t", "ramfs", "ramfs", tmp_path / "m") as point:
        assert not require_writable(point)

    assert require_writable(disk)
    assert "refuses O_DIRECT" in describe_site(site(direct=False)).text


def test_the_stall_of_a_server_does_not_fail_the_node() -> None:
    assert site().name_stall("fsync") == "fsync.longest"
    for remote in (site(kind="nfs4"), site(kind="fuse"), site(network="iSCSI")):
        assert remote.name_stall("fsync") == "remote.fsync.longest"
        assert explain_fault(FaultError(errno.EIO, "said"), remote).code == "remote_io_error"
    assert CHECK.rules["fsync.longest"].otherwise is Verdict.FAIL
    assert CHECK.rules["remote.*.longest"].otherwise is Verdict.WARN


@pytest.mark.parametrize(
    ("listing", "chosen"), [("sync io_uring libaio", "libaio"), ("io_uring", "io_uring")]
)
def test_an_engine_is_chosen_of_those_that_this_fio_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str, chosen: str
) -> None:
    (tmp_path / "fio").write_text(f"#!/bin/sh\necho Available IO engines: {listing}\n")
    (tmp_path / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert fio_runner.find_engine() == chosen


def test_a_fio_that_keeps_one_access_in_flight_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fio").write_text("#!/bin/sh\necho sync psync\n")
    (tmp_path / "fio").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Unable, match="libaio, io_uring"):
        fio_runner.find_engine()


@pytest.mark.needs("root", "mkfs.ext4")
def test_streams_stay_within_what_a_file_system_holds_of_a_sparse_file(
    tmp_path: Path, rng: random.Random
) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    subprocess.run(["mkfs.ext2", "-q", "-b", "1024", image], check=True)
    with mounted("-o", "loop", image, tmp_path / "m") as point:
        extents = lay_out(point, 8 * MIB, 2, rng)
        for extent in extents:
            with extent.path.open("wb") as file:
                file.truncate(extent.offset + extent.size)
        left = {path.name for path in point.iterdir()} - {"lost+found"}

    assert left == {"stream0", "stream1"}
    assert max(extent.offset for extent in extents) > 2**30


def test_streams_stay_below_the_limit_on_the_size_of_files(
    tmp_path: Path, rng: random.Random
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 * MIB, before[1]))
    try:
        extents = lay_out(tmp_path, 8 * MIB, 2, rng)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert all(e.offset + e.size <= 16 * MIB for e in extents)


# Numbers


def job(moved: int, milliseconds: int, bins: dict[str, int]) -> dict[str, object]:
    idle = {"io_bytes": 0, "runtime": 0, "total_ios": 0, "lat_ns": {"max": 0}}
    read = {
        "io_bytes": moved,
        "runtime": milliseconds,
        "total_ios": sum(bins.values()),
        "lat_ns": {"max": max(map(int, bins)) + 5},
        "clat_ns": {"bins": bins},
    }
    return {"read": read, "write": idle, "sync": {"lat_ns": {"max": 0}}}


def test_streams_add_up_over_the_time_of_the_slowest() -> None:
    report = FioReport([job(3 * 10**9, 1000, {"1": 8}), job(10**9, 2000, {"1": 2})])

    assert report.compute_bandwidth("read") == 2000
    assert report.compute_rate("read") == 5


def test_percentiles_are_those_of_all_streams_together() -> None:
    fast, slow = {"1000000": 98}, {"2000000": 1, "9000000": 1}
    report = FioReport([job(1, 1, fast), job(1, 1, slow)])

    quantiles = [report.compute_latency("read", q) for q in (0.5, 0.98, 0.99, 0.999)]
    assert quantiles == [1, 1, 2, 9]
    assert report.find_longest() == pytest.approx(0.009000005)
    assert report.compute_latency("sync", 0.5) is None


def test_the_99th_percentile_leaves_out_one_call_of_a_hundred() -> None:
    times = CallTimes([*(0.001 for _ in range(98)), 0.002, 5.0])

    assert times.p99 == 2
    assert times.rate == pytest.approx(100 / 5.1)


# SMART


def test_what_grew_under_the_load_is_kept_apart_from_the_life_of_the_disk() -> None:
    before = Health({"media_errors": 4, "temperature": 30})
    after = Health({"media_errors": 5, "temperature": 41})

    assert list(report_health(before, after, site())) == [
        Measurement("smart.media_errors", 5, "", "S1"),
        Measurement("smart.temperature", 41, "°C", "S1"),
        Measurement("smart.media_errors.delta", 1, "", "S1"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("spare_margin", -1, Verdict.FAIL),
        ("spare_margin", 0, Verdict.PASS),
        ("percentage_used", 80, Verdict.PASS),
        ("percentage_used", 120, Verdict.WARN),
        ("media_errors", 1, Verdict.WARN),
        ("media_errors.delta", 1, Verdict.FAIL),
        ("hard_errors.delta", 1, Verdict.FAIL),
        ("media_errors.delta", 0, Verdict.PASS),
        ("reallocated.delta", 1, Verdict.WARN),
        ("pending", 1, Verdict.WARN),
    ],
)
def test_the_health_of_a_disk_is_judged_by_what_it_means(
    name: str, value: float, verdict: Verdict
) -> None:
    rule = CHECK.rules[f"smart.{name}"]
    limit = Limit(f"smart.{name}", rule.low, rule.high, rule.verdict, rule.source)

    found = [Measurement(f"smart.{name}", value)]
    assert judge_by(found, [limit], CHECK.finding_rules).verdict is verdict
    assert rule.optional


@pytest.mark.parametrize(
    ("image", "network"),
    [("/data/x/image", "lustre"), ("/var/image", None), ("/data/local/image (deleted)", None)],
)
def test_an_image_on_a_network_file_system_is_reached_over_the_network(
    tmp_path: Path, image: str, network: str | None
) -> None:
    lines = (
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw",
        "21 20 0:40 / /data rw - lustre 10.0.0.1@o2ib:/data rw",
        "22 21 8:2 / /data/local rw - xfs /dev/sda2 rw",
    )
    files = {
        "proc/self/mountinfo": "\n".join(lines),
        "sys/block/loop3/loop/backing_file": image,
        "sys/block/sda/size": 1000,
    }
    root = grow(tmp_path, files)
    assert find_network_of_image("loop3", root) == network
    assert find_network_of_image("sda", root) is find_network_of_image(None, root) is None


def test_the_health_of_a_disk_of_another_machine_is_not_asked(tmp_path: Path) -> None:
    own = replace(site(tmp_path), disk="sda")
    assert own.own_disk == "sda"
    assert replace(own, network="iSCSI").own_disk is None
