"""
What the kernel prints of a user's own words is never evidence.

Anybody may choose the name of a program, the options of a mount, the name of a file, a label
or a cgroup; the kernel prints them in lines of its own. Each way to get words into the log
is tried with the lines of all faults.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcverify.model import CheckItem, Finding, Verdict
from hpcverify.telemetry import kernel_log as log
from hpcverify.telemetry.kernel_log import KernelMessage
from hpcverify.testing import judge_items, make_context
from hpcverify_checks import kernel_log, xid
from hpcverify_checks.kernel_log import pstore
from hpcverify_checks.kernel_log.lines import JOB_KIND, ROWS, read_events
from hpcverify_checks.xid.lines import LINE_MARKERS
from hpcverify_checks.xid.lines import read_events as read_xids
from tests.checks.kernel_lines import FAULTY
from tests.checks.test_kernel_log import BOARD, ring
from tests.telemetry import trees
from tests.telemetry.test_kernel_log import BOOTED, NOW, Journalctl, entry, record

XID_FAULTS = (
    "NVRM: Xid (PCI:0000:b3:00): 79, pid=1, name=python3, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:b3:00): xyz, invalid data",
    "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
    "NVRM: GPU at 0000:b3:00.0 has fallen off the bus.",
    "NVRM: fallen off the bus and is not responding to commands.",
    (
        r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this "
        r"system has\x0aNVRM: fallen off the bus and is not responding to commands."
    ),
    "NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
    "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62)",
)
FAULTS = (
    *XID_FAULTS,
    *(t for code, texts in FAULTY.items() if ROWS[code].kind != JOB_KIND for t in texts),
)
CRASHES_OF_JOBS = tuple(t for code, ts in FAULTY.items() if ROWS[code].kind == JOB_KIND for t in ts)

QUOTES = (
    "tmpfs: Unknown parameter '{}'",
    "fuse: Unknown parameter '{}'",
    'overlayfs: unrecognized mount option "{}" or missing value',
    "overlayfs: failed to resolve '{}': -2",
    'EXT4-fs (sdb1): Unrecognized mount option "{}" or missing value',
    "BTRFS info (device sdb1): unrecognized mount option '{}'",
    'F2FS-fs (sdb1): Unrecognized mount option "{}" or missing value',
    "BTRFS: device label {} devid 1 transid 7 /dev/sdb1 scanned by systemd-udevd (331)",
    "EXT4-fs (sdb1): mounted filesystem {} r/w with ordered data mode.",
    "XFS (sdb1): unknown mount option [{}].",
    "FAT-fs (sdb1): Volume {} was not properly unmounted.",
    "ISO 9660 Extensions: {}",
    "usb 1-2: Product: {}",
    "usb 1-2: SerialNumber: {}",
    "input: {} as /devices/pci0000:00/0000:00:14.0/usb1/1-2/input/input7",
    "scsi 6:0:0:0: Direct-Access     {}  1.00 PQ: 0 ANSI: 6",
    'audit: type=1326 audit(1753325017.312:11): auid=1000 comm="{0}" exe="{0}" sig=0',
    'audit: type=1400 audit(1753325017.312:12): apparmor="DENIED" name="{}"',
    "process '/tmp/{}' started with executable stack",
    "process '{}' started with executable stack",
    'ptrace attach of "{0}"[77] was attempted by "{0}"[78]',
    "warning: `{}' uses 32-bit capabilities (legacy support in use)",
    "veth0: renamed from {}",
    "IPv6: ADDRCONF(NETDEV_CHANGE): {}: link becomes ready",
    "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/{0},task_memcg=/{0},task={0},pid=7,uid=1000",
    "Tasks in /{} killed as a result of limit of /docker",
    "Memory cgroup stats for /{}:",
    "cgroup: fork rejected by pids controller in /{}",
    "random: {}: uninitialized urandom read (16 bytes read)",
    "a.out[77]: segfault at 0 ip 0 sp 0 error 14 in {}[400000+1000]",
    "traps: a.out[77] general protection fault ip:7f7c sp:7f7b error:0 in {}[7f7c+1]",
    "python3: page allocation failure: order:4, mode:0x0, cpuset={},mems_allowed=0",
    "python3 cpuset={} mems_allowed=0",
    "NVRM: API mismatch: the client has the version {}, but",
    "EXT4-fs warning (device sda1): ext4_dx_add_entry:2516: inode #2: comm {}: index full!",
)
"""Lines that quote a user, who may write anything."""
BREAKS = ("", r"x\x0a", "x#012", "x\n", "x\r\n", "x: ")
"""What the user writes before the line of a fault: nothing, or the end of a line."""
CRASHES = (
    "{}[77]: segfault at 0 ip 0040 sp 7ffd error 6 in {}[401000+1] on CPU 12 (core 3, socket 1)",
    "traps: {}[77] general protection fault ip:7f7c sp:7f7b error:0 in {}[7f7c+1]",
    "traps: {}[77] trap invalid opcode ip:401136 sp:7ffd error:0 in {}[401000+1000]",
    "{}[77]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 translation fault {}",
    "{}[77] bad frame in rt_sigreturn frame:0 ip:0 sp:0 orax:0 in {}[400000+1]",
    "{} cpuset={} mems_allowed=0",
    "{}: page allocation failure: order:4, mode:0x0, nodemask=(null),cpuset={},mems_allowed=0",
    "{}: page allocation stalls for 10002ms, order:0, mode:0x14200ca, nodemask=(null) {}",
    "{}: sending ioctl 1261 to a partition! {}",
    "{}: vmalloc error: size 8192, mode:0xdc0(GFP_KERNEL), cpuset={},mems_allowed=0",
    "{} invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, {}",
    "{} (77): drop_caches: 3 {}",
    "{} (77) used greatest stack depth: 11000 bytes left {}",
    "{}/77: potentially unexpected fatal signal 11. {}",
    "{} uses obsolete (PF_INET,SOCK_PACKET) {}",
    "{}: attempt to access beyond end of device\nloop0: rw=0, sector=9, nr_sectors = 8 limit=8",
    "{}: attempt to access beyond end of device",  # its second line is a message of its own
)
"""Lines that begin with the name of a program, and go on with the name of a file or a cgroup."""
PACKETS = (
    "{}IN=lo OUT= MAC=00:00:00:00:00:00:00:00:00:00:00:00:08:00 SRC=127.0.0.1 DST=127.0.0.1 LEN=84",
    "{}IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=84 TOS=0x00 PREC=0x00 TTL=64 ID=0 PROTO=UDP ",
    "{}IN=veth0 OUT=veth1 PHYSIN=p PHYSOUT=q SRC=fe80:0000:0000:0000:0000:0000:0000:0001 DST=ff02 ",
    "{}IN=veth0 OUT= VPROTO=8100 VID=5 MACSRC=02:00:00:00:00:01 MACDST=02:00:00:00:00:02 ",
    "{}IN=veth0 OUT= ARP HTYPE=1 PTYPE=0x0800 OPCODE=1",
    "{}IN=veth0 OUT= TRUNCATED",
    "{}IN=lo OUT= ",
    "{}IN=tun0 OUT= MAC= SRC=10.0.0.1 DST=10.0.0.2 LEN=84",
    "{}IN=tun0 OUT= MAC= ",
    "{}IN=sit1 OUT= MAC= TUNNEL=10.0.0.1->10.0.0.2 SRC=fe80::1 DST=fe80::2 LEN=84",
    "{} IN=veth0 OUT= MAC source = 02:00:00:00:00:01 MAC dest = 02:00:00:00:00:02 proto = 0x0800",
)
"""Packets that were logged, as net/netfilter/nf_log_syslog.c and ebt_log.c print them."""
MAX_NAME, MAX_PREFIX = 15, 127


def list_forged(text: str) -> Iterator[str]:
    """Write *text* as a user could have the kernel print it."""
    for quote in QUOTES:
        yield from (quote.format(begin + text) for begin in BREAKS)
    for crash in CRASHES:
        for length in range(3, MAX_NAME + 1, 3):
            name, rest = text[:length], text[length:].lstrip()
            padding = MAX_NAME - length
            # The kernel prints a byte that is none of ASCII's in four characters.
            for filled in (name, name + r"\x0a" * padding, name + "\n" * padding):
                yield from (crash.format(filled, f"{begin}{rest}") for begin in ("", " on x ("))
        yield crash.format("NVRM: x", text)
        yield crash.format("NVRM: x", rf"a\x0a{text}")

    yield from (packet.format(text[:MAX_PREFIX]) for packet in PACKETS)
    yield from (packet.format(f"{text[: MAX_PREFIX - 1]} ") for packet in PACKETS)


def accuses(text: str) -> list[str]:
    """Name the findings of *text* that are more than a note that a job crashed."""
    message = KernelMessage(text, 0.0, "0")
    codes = [event.row.code for event in read_events([message]) if event.row.kind != JOB_KIND]
    return [*codes, *(event.row.code for event in read_xids([message]))]


@pytest.mark.parametrize("text", [*FAULTS, *CRASHES_OF_JOBS])
def test_no_words_of_a_user_that_the_kernel_prints_are_evidence(text: str) -> None:
    assert bool(accuses(text)) is (text in FAULTS)
    found = {forged: codes for forged in list_forged(text) if (codes := accuses(forged))}
    assert found == {}


@pytest.mark.parametrize(
    "name",
    [
        *("IN=a OUT= MAC=0", "IN=a OUT= SRC=1", "IN=a OUT= PHYSI", "IN=a OUT=b ARP "),
        *("IN=a OUT= MAC= ", "IN= OUT=TUNNEL="),
    ],
)
def test_no_name_of_a_program_hides_a_fault(name: str) -> None:
    assert len(name) <= MAX_NAME
    xid = f"NVRM: Xid (PCI:0000:b3:00): 79, pid=1, name={name}, GPU has fallen off the bus."
    error = f"EXT4-fs error (device sda1): ext4_lookup:1855: inode #2: comm {name}: iget: bad inode"
    assert accuses(xid) == ["xid_79"]
    assert accuses(error)


def test_no_words_of_a_user_between_two_lines_complete_a_loss() -> None:
    opening = "NVRM: The NVIDIA GPU 0000:b3:00.0"
    forged = "tmpfs: Unknown parameter 'x#012NVRM: fallen off the bus and'"
    messages = [KernelMessage(text, 0.0, "0") for text in (opening, forged)]
    assert read_xids(messages) == []


FORGED = "tmpfs: Unknown parameter 'x{}NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.'"


def judge_ring(root: Path, text: str) -> Verdict:
    found: list[CheckItem] = []
    for check in (xid, kernel_log):
        ctx = make_context(root, inventory=BOARD)
        items = list(check.read_log(ctx, ring(root, record(0, text))))
        found += [item for item in items if isinstance(item, Finding)]
    return judge_items(xid.CHECK, found).verdict if found else Verdict.PASS


@pytest.mark.parametrize("end", ["#012", r"\x0a"])
def test_a_mount_of_a_user_accuses_no_gpu(tmp_path: Path, end: str) -> None:
    assert judge_ring(tmp_path, FORGED.format(end)) is Verdict.PASS
    assert judge_ring(tmp_path, XID_FAULTS[2]) is Verdict.FAIL


def read_ring(root: Path, text: str) -> list[KernelMessage]:
    quoted = text.replace("\n", r"\x0a")  # as devkmsg_read() of kernel/printk/printk.c does
    return list(log.read(None, LINE_MARKERS, ring(root, record(0, quoted))).messages)


def read_journal(root: Path, text: str) -> list[KernelMessage]:
    trees.grow(root, {"proc/sys/kernel/random/boot_id": "b1", "proc/stat": f"btime {BOOTED}"})
    (root / "var/log/journal").mkdir(parents=True)
    tool = Journalctl(entry(1, text))
    return list(log.read(None, LINE_MARKERS, root, tool, lambda: NOW).messages)


def read_dump(root: Path, text: str, *times: float) -> list[KernelMessage]:
    """Read a dump with *text*, whose lines have one time, or *times*."""
    stamps = times or itertools.repeat(7140.123456)
    parts = zip(text.split("\n"), stamps, strict=False)
    lines = "".join(f"<4>[{stamp:12.6f}] {line}\n" for line, stamp in parts)
    trees.grow(root, {"sys/fs/pstore/dmesg-efi-1": f"Panic#1 Part1\n{lines}"})
    return pstore.read_dumps(root, None, 0.0)[0]


READERS: dict[str, Callable[[Path, str], list[KernelMessage]]] = {
    "ring": read_ring,
    "journal": read_journal,
    "dump": read_dump,
}
"""A dump has each line of a message with the time of the message."""


@pytest.mark.parametrize("source", READERS)
@pytest.mark.parametrize("end", ["\n", "\r", "\x0c", "\u2028"])
@pytest.mark.parametrize(
    "fault", [XID_FAULTS[0], *XID_FAULTS[2:4], "Kernel panic - not syncing: Fatal machine check"]
)
def test_a_new_line_in_a_users_words_begins_no_message(
    tmp_path: Path, source: str, end: str, fault: str
) -> None:
    trees.grow(tmp_path / "real", {})
    read = READERS[source]
    forged = read(tmp_path / "forged", f"tmpfs: Unknown parameter 'x{end}{fault}'")
    assert (read_xids(forged), [*read_events(forged)]) == ([], [])
    if fault.startswith("NVRM"):
        assert read_xids(read(tmp_path / "real", fault))


@pytest.mark.parametrize("name", ["I/O error", "x: error -5"])
def test_the_name_of_a_program_is_no_error_of_a_file_system(name: str) -> None:
    warning = "EXT4-fs warning (device sda1): {}: inode #2: {}"
    full = ("ext4_dx_add_entry:2516", f"comm {name}: Directory index full!")
    assert accuses(warning.format(*full)) == []
    real = ("htree_dirblock_to_tree:994", "lblock 0: comm ls: error -5 reading directory block")
    assert accuses(warning.format(*real)) == ["fs_error"]


def test_messages_at_different_times_are_not_joined(tmp_path: Path) -> None:
    text = f"tmpfs: Unknown parameter 'x'\n{XID_FAULTS[2]}"
    (event,) = read_xids(read_dump(tmp_path, text, 7140.123456, 7140.123457))
    assert event.xid == 79


def test_at_the_start_of_the_boot_all_messages_have_one_time(tmp_path: Path) -> None:
    lines = read_dump(tmp_path, f"Linux version 6.8\n{XID_FAULTS[0]}", 0.0, 0.0)
    assert [event.xid for event in read_xids(lines)] == [79]


def test_the_drivers_own_message_of_three_lines_is_read_as_one(tmp_path: Path) -> None:
    texts = XID_FAULTS[5].split(r"\x0a")
    for number, name in enumerate(READERS):
        (event,) = read_xids(READERS[name](tmp_path / str(number), "\n".join(texts)))
        assert (event.xid, event.address) == (79, "0000:b3:00.0")


def test_every_row_still_speaks_for_its_line() -> None:
    for code, texts in FAULTY.items():
        for text in texts:
            (event,) = read_events([KernelMessage(text, 0.0, "0")])
            assert event.row is ROWS[code]
