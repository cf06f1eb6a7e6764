"""
Each check of NHC 1.4.3 and 1.5, with what it becomes or why it becomes nothing.

What it becomes is a piece of an `Expectation` of the check `host`: a key, and what to add
to it. A check that repairs (``-r``, ``-e``) is turned without the repair, and that is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct

from hpcverify.errors import ConfigError
from hpcverify.plan import catalog
from hpcverify.plan.config import convert_config
from hpcverify.plan.nhc.syntax import (
    CannotTurn,
    Line,
    Unturned,
    parse_count,
    parse_options,
    parse_share,
    parse_size,
    read_lines,
    turn_pattern,
)

Piece = tuple[str, Any]
"""A key of an expectation and what it adds, or `NOTE` and what is lost."""
NOTE = "note"
DOMAIN = re.compile(r"^!?[^/]*\.[A-Za-z][\w-]*$")
WITH_DOMAIN = "the target is a full domain name; if Slurm uses short names, shorten it in nodes"
Turner = Callable[[str, Sequence[str]], Iterator[Piece]]
COMM_LENGTH = 15
"""Characters that the kernel keeps of a process's name."""
NO_REPAIR = "actions (start, remount, kill, -e, -E) are dropped: hpcverify does not repair"
NOT_FATAL = "-0 (not fatal) is dropped: an expectation that is not met is an ERROR"

OWN_CHECK = "runs a program. Fix: write a check (docs/how-to/write-a-check.md)"
BY_JOBS = (
    "the cgroups of the scheduler limit processes of users (ConstrainCores, ConstrainRAMSpace); "
    "host reports processes of ended jobs"
)
GPU_HEALTH = "the checks recovery, ecc, gpu_setup, pcie, nvlink and xid read this from the driver"
SCHEDULER = "queries a server of the scheduler, not this node"
DMI = (
    "inventory compares firmware and memory modules with the last run; for other values, use "
    "files (/sys/class/dmi/id)"
)
REASONS = {
    "check_hw_gm": "Linux no longer has a driver for Myrinet",
    "check_hw_mcelog": "the checks ecc and kernel_log report machine checks",
    "check_hw_mem": "memory and swap have separate bounds. Fix: use check_hw_physmem and _swap",
    "check_dmi_raw_data_match": DMI,
    "check_cmd_dmesg": "the checks kernel_log and xid read the kernel log by tables of lines",
    "check_net_ping": "hpcverify does not ping other nodes; nic checks links, hosts checks names, "
    "and mounts checks servers",
    "check_net_socket": "list the daemon that listens under processes or services",
    "check_nv_healthmon": GPU_HEALTH,
    "check_nvsmi_healthmon": GPU_HEALTH,
    "check_ps_cpu": BY_JOBS,
    "check_ps_mem": BY_JOBS,
    "check_ps_physmem": BY_JOBS,
    "check_ps_time": BY_JOBS,
    "check_ps_kswapd": "works around a bug of Linux 2.6.32",
    "check_ps_unauth_users": "pam_slurm_adopt refuses such logins; host reports processes of jobs "
    "that are over",
    "check_ps_userproc_lineage": "pam_slurm_adopt does this; host reports processes of jobs that "
    "are over",
    "check_moab_sched": SCHEDULER,
    "check_moab_rm": SCHEDULER,
    "check_moab_torque": SCHEDULER,
}


class Imported(Struct, frozen=True):
    """The content of a site file, and what is not in it."""

    site: dict[str, Any]
    turned: int
    unturned: tuple[Unturned, ...]


def import_nhc(text: str) -> Imported:
    """Convert the *text* of an nhc.conf into a site file, line by line."""
    host = catalog.load_check("host").params
    expectations: dict[str, dict[str, Any]] = {}
    bounded: dict[tuple[str, str], Line] = {}
    unturned: list[Unturned] = []
    turned = 0
    for line in read_lines(text):
        if isinstance(line, Unturned):
            unturned.append(line)
            continue
        try:
            pieces = list(_turn(line))
            asked: dict[str, Any] = {"nodes": line.target}
            for key, piece in pieces:
                if key != NOTE:
                    _add(asked, key, piece)
            convert_config({"expect": [asked]}, host, "the check host refuses it")
        except (CannotTurn, ConfigError) as exc:
            unturned.append(Unturned(line.number, line.text, str(exc)))
            continue
        turned += 1
        for key, piece in pieces:
            if key == NOTE:
                unturned.append(Unturned(line.number, line.text, piece))
            else:
                expectation = expectations.setdefault(line.target, {"nodes": line.target})
                _add(expectation, key, piece)
                for name in piece if key == "bounds" else ():
                    before = bounded.setdefault((line.target, name), line)
                    low, high = map(expectation[key][name].get, ("low", "high"))
                    if low is not None and high is not None and low > high:
                        raise ConfigError(
                            f"line {line.number} ({line.text}) contradicts line {before.number} "
                            f"({before.text}): {name} would be at least {low:g} and at most "
                            f"{high:g}. Fix: give each line different nodes"
                        )
    expect = list(expectations.values())
    site = {"params": {"host": {"expect": expect}}} if expect else {}
    return Imported(site, turned, tuple(unturned))


def _add(expectation: dict[str, Any], key: str, piece: Any) -> None:
    if isinstance(piece, dict) and key == "bounds":
        bounds = expectation.setdefault(key, {})
        for name, bound in piece.items():
            both = [bounds.get(name, {}), bound]  # both must hold
            low = [one["low"] for one in both if "low" in one]
            high = [one["high"] for one in both if "high" in one]
            bounds[name] = ({"low": max(low)} if low else {}) | (
                {"high": min(high)} if high else {}
            )
    elif piece not in expectation.setdefault(key, []):
        expectation[key].append(piece)


def _turn(line: Line) -> Iterator[Piece]:
    name, *arguments = line.words
    if name == "export" or re.match(r"\w+=", name):
        if any(word.startswith("check_") for word in arguments):
            raise CannotTurn("sets a variable for one check. Fix: write the check alone")
        raise CannotTurn(
            "is a setting of NHC. Fix: use deadline in params.host, budget in a suite, or "
            "[quarantine]"
        )
    if name in REASONS:
        raise CannotTurn(REASONS[name])
    if name not in TURNERS:
        raise CannotTurn(
            "is a check of the site, not of NHC. Fix: write a check (docs/how-to/write-a-check.md)"
        )
    pieces = list(TURNERS[name](name, arguments))
    if not pieces:
        raise CannotTurn("has no condition that can be met")
    return chain(pieces, [(NOTE, WITH_DOMAIN)] if DOMAIN.search(line.target) else [])


def _note_losses(options: Iterable[str], actions: str) -> Iterator[Piece]:
    if set(options) & set(actions):
        yield NOTE, NO_REPAIR
    if "0" in options:
        yield NOTE, NOT_FATAL


def _require(arguments: Sequence[str], least: int) -> list[str | None]:
    """Take at most three arguments, None for what is not given."""
    if len(arguments) < least:
        raise CannotTurn("an argument is missing")
    return [*arguments[:3], None, None, None][:3]


def _turn_mount(name: str, arguments: Sequence[str]) -> Iterator[Piece]:
    if arguments and arguments[0].startswith("/"):
        path, source, kind, *option = [*arguments, "", "", ""]
        options, paths = {k: [v] for k, v in zip("sto", (source, kind, option[0])) if v}, [path]  # noqa: B905
    else:
        options, paths = parse_options(arguments, "0r", "EFOefost")
    paths = [*options.get("f", []), *options.get("F", []), *paths]
    if not paths:
        raise CannotTurn("it names no file system")
    if any(len(options.get(letter, [])) > 1 for letter in "st"):
        raise CannotTurn("several sources or types at once: write one line for each")
    need: dict[str, Any] = {}
    for letter, key in (("t", "type"), ("s", "source")):
        if letter in options:
            need[key] = turn_pattern(options[letter][0])
    if "o" in options:
        need["options"] = [turn_pattern(pattern) for pattern in options["o"]]
    if name != "check_fs_mount":
        need["writable"] = name == "check_fs_mount_rw"
    for path in paths:
        yield "mounts", {"path": path} | need
    yield from _note_losses(options, "rOeE")


def _turn_space(name: str, arguments: Sequence[str]) -> Iterator[Piece]:
    path, first, second = _require(arguments, 2)
    if path is None or first is None:
        return
    if path.startswith("/dev/") and path != "/dev/shm":  # noqa: S108
        raise CannotTurn("NHC ignores it: it compares mount points, and this is a device")
    low, high, share_key = SPACE[name]
    parse = parse_count if "inodes" in low + high else parse_size
    share = parse_share(first)
    need: dict[str, Any] = {"path": path}
    if share is not None:
        if not share_key:
            raise CannotTurn("a size in percent")
        need[share_key] = {"low": round(1 - share if high and not low else share, 6)}
    elif low:
        need[low] = {
            end: parse(amount) for end, amount in (("low", first), ("high", second)) if amount
        }
    else:
        need[high] = {"high": parse(first)}
    yield "space", need


SPACE = {
    "check_fs_free": ("free", "", "free_share"),
    "check_fs_used": ("", "used", "free_share"),
    "check_fs_size": ("size", "", ""),
    "check_fs_inodes": ("inodes", "", ""),
    "check_fs_ifree": ("free_inodes", "", "free_inodes_share"),
    "check_fs_iused": ("", "used_inodes", "free_inodes_share"),
}
"""What must be at least, or at most, an amount; and what a share is one of."""


def _turn_cpuinfo(name: str, arguments: Sequence[str]) -> Iterator[Piece]:  # noqa: ARG001
    for key, value in zip(("sockets", "cores", "threads"), arguments, strict=False):
        if value:
            count = parse_count(value)
            yield "bounds", {key: {"low": count, "high": count}}


def _turn_total(name: str, arguments: Sequence[str]) -> Iterator[Piece]:
    least, most, fudge = _require(arguments, 1)
    key = "memory.total" if name == "check_hw_physmem" else "swap.total"
    # NHC's tolerance is a share of what is there, or a size.
    share = parse_share(fudge) if fudge else 0.0
    size = 0.0 if share is not None or fudge is None else parse_size(fudge)
    bound: dict[str, float] = {}
    if least:
        bound["low"] = max(0.0, round(parse_size(least) / (1 + (share or 0)) - size, 6))
    if most:
        bound["high"] = round(parse_size(most) / (1 - (share or 0)) + size, 6)
    yield "bounds", {key: bound}


def _turn_left(name: str, arguments: Sequence[str]) -> Iterator[Piece]:
    least, *_ = _require(arguments, 1)
    key = "swap.free" if name == "check_hw_swap_free" else "memory.available"
    yield "bounds", {key: {"low": round(parse_size(least or ""), 6)}}
    if name == "check_hw_mem_free":
        yield NOTE, "turned into memory alone: free swap does not count"


def _turn_infiniband(name: str, arguments: Sequence[str]) -> Iterator[Piece]:  # noqa: ARG001
    rate, device, _ = _require(arguments, 0)
    if not device:
        raise CannotTurn("names no device: the check nic compares every port with what it can do")
    adapter, _, port = device.partition(":")
    folder = f"/sys/class/infiniband/{adapter}/ports/{port or 1}"
    yield "files", {"path": f"{folder}/state", "contains": ["*ACTIVE"]}
    yield "files", {"path": f"{folder}/phys_state", "contains": ["*LinkUp"]}
    if rate:
        yield "files", {"path": f"{folder}/rate", "contains": [f"{rate} *"]}


def _turn_ethernet(name: str, arguments: Sequence[str]) -> Iterator[Piece]:  # noqa: ARG001
    device, *_ = _require(arguments, 1)
    if re.search(r"[*?\[]", device or ""):
        raise CannotTurn("host takes no pattern of devices: write one line for each")
    yield "files", {"path": f"/sys/class/net/{device}"}


def _turn_dmi(name: str, arguments: Sequence[str]) -> Iterator[Piece]:  # noqa: ARG001
    options, rest = parse_options(arguments, "!n", "ht")
    match = re.fullmatch(r"(BIOS|System|Base Board) Information: ([\w ]+): (.+)", " ".join(rest))
    file = DMI_FILES.get((match[1], match[2])) if match else None
    if match is None or file is None or set(options) - {"t"}:
        raise CannotTurn(DMI)
    yield "files", {"path": f"/sys/class/dmi/id/{file}", "contains": [turn_pattern(match[3])]}


DMI_FILES = {
    ("BIOS", "Version"): "bios_version",
    ("BIOS", "Vendor"): "bios_vendor",
    ("BIOS", "Release Date"): "bios_date",
    ("System", "Manufacturer"): "sys_vendor",
    ("System", "Product Name"): "product_name",
    ("System", "Version"): "product_version",
    ("Base Board", "Product Name"): "board_name",
    ("Base Board", "Version"): "board_version",
}


def _turn_contents(name: str, arguments: Sequence[str]) -> Iterator[Piece]:  # noqa: ARG001
    _require(arguments, 2)
    path, *patterns = arguments
    yield "files", {"path": path, "contains": [turn_pattern(p) for p in patterns]}


TESTS: dict[str, dict[str, Any]] = {
    **{letter: {} for letter in "aerwx"},  # root may do all this with whatever is there
    "f": {"type": "file"},
    "d": {"type": "directory"},
    "L": {"type": "link"},
    "h": {"type": "link"},
    "c": {"type": "character"},
    "b": {"type": "block"},
    "p": {"type": "pipe"},
    "S": {"type": "socket"},
    "s": {"empty": False},
    "k": {"mode": "1000"},
    "g": {"mode": "2000"},
    "u": {"mode": "4000"},
}
"""What a letter of test(1) asks of a file."""


def _turn_test(name: str, arguments: Sequence[str]) -> Iterator[Piece]:  # noqa: ARG001
    flags = [word[1:] for word in arguments if word.startswith("-")]
    paths = [word for word in arguments if not word.startswith("-")]
    unknown = [flag for flag in flags if flag not in TESTS]
    if unknown:
        raise CannotTurn(f"host does not test -{unknown[0]}")
    if not flags or not paths:
        raise CannotTurn("an argument is missing")
    need: dict[str, Any] = {}
    mode = 0
    for flag in flags:
        asked = dict(TESTS[flag])
        mode |= int(asked.pop("mode", "0"), 8)
        need |= asked
    if mode:
        need["mode"] = f"{mode:04o}"
    for path in paths:
        yield "files", {"path": path} | need


def _turn_stat(name: str, arguments: Sequence[str]) -> Iterator[Piece]:  # noqa: ARG001
    options, paths = parse_options(arguments, "", "DGMNOTUdgmnotu")
    need = {
        key: options[letter][0]
        for letter, key in (("m", "mode"), ("u", "user"), ("U", "user"), ("g", "group"))
        if letter in options
    }
    need |= {"group": options["G"][0]} if "G" in options else {}
    if "m" in options:
        need["mode"] = f"={need['mode']}"
    other = sorted(set(options) - set("muUgG"))
    if not need or not paths:
        raise CannotTurn("host compares mode, user and group of a file, not times and numbers")
    for path in paths:
        yield "files", {"path": path} | need
    if other:
        yield NOTE, f"-{' -'.join(other)}: host compares neither times nor device numbers"


def _turn_service(name: str, arguments: Sequence[str]) -> Iterator[Piece]:  # noqa: ARG001
    options, rest = parse_options(arguments, "0SVcfkrsv", "Edemu")
    if "f" in options or "m" in options:
        raise CannotTurn(
            "compares the whole command line: list the unit of systemd under services instead"
        )
    daemon = options["d"][0] if "d" in options else " ".join(rest)
    # With one of these, NHC fails if it finds the process.
    unwanted = {"running": False} if set(options) & {"s", "k", "E"} else {}
    yield "processes", _make_process(daemon, options.get("u", [""])[0]) | unwanted
    yield from _note_losses(options, "EScerskvV")


def _turn_daemon(name: str, arguments: Sequence[str]) -> Iterator[Piece]:
    daemon, owner, more = _require(arguments, 1)
    if more:
        raise CannotTurn("compares the arguments of a process: list its unit under services")
    need = _make_process(daemon or "", owner or "")
    need["name"] = f"*{need['name']}*"  # NHC looks for it anywhere in the command line
    yield "processes", need | ({"running": False} if name == "check_ps_blacklist" else {})


def _make_process(daemon: str, owner: str) -> dict[str, Any]:
    program = daemon.rpartition("/")[2]
    if not program or " " in program:
        raise CannotTurn("it names no process")
    return {"name": program[:COMM_LENGTH]} | ({"user": owner} if owner else {})


def _turn_command(name: str, arguments: Sequence[str]) -> Iterator[Piece]:
    valued = "CMOemrt" if name == "check_cmd_output" else "Crt"
    options, rest = parse_options(arguments, "", valued)
    command = [*" ".join(options.get("e", [])).split(), *rest]
    program = command[0].rpartition("/")[2] if command else ""
    if program == "id" and len(command) == 2 and options.get("r", ["0"]) == ["0"]:  # noqa: PLR2004
        yield "users", command[1]
        return
    if program in {"timedatectl", "chronyc", "ntpq", "ntpstat"}:
        raise CannotTurn("say how far off the clock may be: clock_offset, in seconds")
    raise CannotTurn(OWN_CHECK)


def _turn_load(name: str, arguments: Sequence[str]) -> Iterator[Piece]:  # noqa: ARG001
    for key, most in zip(("load.1m", "load.5m", "load.15m"), arguments, strict=False):
        if most and most != "0":
            yield "bounds", {key: {"high": parse_count(most)}}


TURNERS: dict[str, Turner] = {
    **dict.fromkeys(("check_fs_mount", "check_fs_mount_rw", "check_fs_mount_ro"), _turn_mount),
    **dict.fromkeys(SPACE, _turn_space),
    "check_hw_cpuinfo": _turn_cpuinfo,
    **dict.fromkeys(("check_hw_physmem", "check_hw_swap"), _turn_total),
    **dict.fromkeys(
        ("check_hw_physmem_free", "check_hw_swap_free", "check_hw_mem_free"), _turn_left
    ),
    "check_hw_ib": _turn_infiniband,
    "check_hw_eth": _turn_ethernet,
    "check_dmi_data_match": _turn_dmi,
    "check_file_contents": _turn_contents,
    "check_file_test": _turn_test,
    "check_file_stat": _turn_stat,
    "check_ps_service": _turn_service,
    **dict.fromkeys(("check_ps_daemon", "check_ps_blacklist"), _turn_daemon),
    "check_ps_loadavg": _turn_load,
    **dict.fromkeys(("check_cmd_output", "check_cmd_status"), _turn_command),
}
