"""
Parses Slurm's answers about nodes into `Host`.

Before 23.02, ``scontrol show node`` has no JSON. Later versions have one of two
dialects: a state as a word with flags beside it and plain numbers, or a list of words
and numbers in objects. Either may occur for any field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from hpcverify.errors import SlurmError
from hpcverify.slurm import Host

BASE_STATES = frozenset({"UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"})
"""``enum node_states`` of slurm/slurm.h; every other word is a flag."""

STATE_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""What may follow a state: sinfo(1), NODE STATE CODES."""

_STATE_ALIASES = {"MAINTENANCE": "MAINT", "DRAINED": "DRAIN", "DRAINING": "DRAIN"}
"""Words that differ between versions."""

_RECORD = re.compile(r"^(?=NodeName=)", re.MULTILINE)
_FIELD = re.compile(r"^ {3}(State|Partitions|BootTime|Gres)=(\S*)", re.MULTILINE)
_NAME = re.compile(r"NodeName=(\S+)")
_REASON = re.compile(r"^ {3}Reason=(.*(?:\n {10}.*)*)", re.MULTILINE)
_SET_BY = re.compile(r" \[([^\s@]*)@(\d+)\]$")


class _Number(Struct):
    set: bool
    number: int


class _Node(Struct):
    name: str
    state: str | list[str]
    boot_time: int | _Number
    state_flags: list[str] = []
    partitions: list[str] = []
    gres: str = ""
    reason: str | None = None
    reason_set_by_user: str | None = None
    reason_changed_at: int | _Number = 0


class _Answer(Struct):
    nodes: list[_Node]
    errors: list[object] = []


def from_json(printed: str) -> dict[str, Host]:
    """Parse the output of ``scontrol show nodes --json``, in either dialect."""
    try:
        answer = msgspec.json.decode(printed, type=_Answer)
    except msgspec.MsgspecError as exc:
        raise SlurmError(f"the JSON of scontrol is invalid: {exc}") from exc
    if answer.errors:
        raise SlurmError(f"scontrol reports {answer.errors[0]}")
    return _index_hosts([_build_host(node) for node in answer.nodes])


def _build_host(node: _Node) -> Host:
    reason = node.reason if node.reason and node.reason.strip() else ""
    words = [node.state] if isinstance(node.state, str) else node.state
    state, flags = read_state([*words, *node.state_flags])
    return Host(
        name=node.name,
        state=state,
        flags=flags,
        partitions=tuple(node.partitions),
        gpus=count_gpus(node.gres),
        reason=reason,
        reason_user=(node.reason_set_by_user or "") if reason else "",
        reason_time=_read_number(node.reason_changed_at) if reason else 0,
        boot_time=_read_number(node.boot_time),
    )


def _read_number(number: int | _Number) -> int:
    if isinstance(number, int):
        return number
    return number.number if number.set else 0


def from_text(printed: str) -> dict[str, Host]:
    """Parse ``scontrol show node``, but not with ``-o``, which drops line breaks of reasons."""
    if not printed.endswith("\n\n"):  # as each record does
        raise SlurmError(f"the output of scontrol is incomplete: … {printed[-80:]!r}")
    return _index_hosts([_parse_record(text) for text in _RECORD.split(printed) if text.strip()])


def _parse_record(text: str) -> Host:
    name = _NAME.match(text)
    # The first of each: what people write (reason, comment) comes after them all.
    fields = {match[1]: match[2] for match in reversed(list(_FIELD.finditer(text)))}
    if name is None or not {"State", "BootTime"} <= fields.keys():
        raise SlurmError(f"the output of scontrol is incomplete: {text[:80]!r}")
    state, flags = read_state(fields["State"].split("+"))
    reason, user, time = _parse_reason(text)
    return Host(
        name=name[1],
        state=state,
        flags=flags,
        partitions=tuple(filter(None, fields.get("Partitions", "").split(","))),
        gpus=count_gpus(fields.get("Gres", "")),
        reason=reason,
        reason_user=user,
        reason_time=time,
        boot_time=int(fields["BootTime"]) if fields["BootTime"].isdigit() else 0,
    )


def _parse_reason(text: str) -> tuple[str, str, int]:
    """Parse the reason, who set it and when: the first line ends in these two."""
    match = _REASON.search(text)
    if match is None or not _SET_BY.sub("", match[1]).strip():
        return "", "", 0
    first, *more = match[1].split("\n")
    more = [line[10:] for line in more]
    by = _SET_BY.search(first)
    if by is None:
        return "\n".join([first, *more]), "", 0
    return "\n".join([first[: by.start()], *more]), by[1], int(by[2])


def read_state(words: Iterable[str]) -> tuple[str, frozenset[str]]:
    """Separate a state from its flags, as in ``IDLE*``, ``DRAIN``."""
    flags: set[str] = set()
    plain: list[str] = []
    for word in words:
        bare = word.rstrip("".join(STATE_SUFFIXES))
        flags.update(STATE_SUFFIXES[mark] for mark in word[len(bare) :])
        plain.append(_STATE_ALIASES.get(bare.upper(), bare.upper()))
    state = next((word for word in plain if word in BASE_STATES), None)
    if state is None:
        raise SlurmError(f"scontrol printed an unknown node state: {plain}")
    return state, frozenset(flags | set(plain) - {state, ""})


def count_gpus(gres: str) -> int:
    """Count the GPUs in ``gpu:a100:4(S:0-1),gpu:1,shard:8``; a bare ``gpu`` is one."""
    count = 0
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, *rest = item.split(":")
        if kind == "gpu":
            count += int(rest[-1]) if rest and rest[-1].isdigit() else 1
    return count


def _index_hosts(hosts: list[Host]) -> dict[str, Host]:
    by_name = {host.name: host for host in hosts}
    if not hosts:
        raise SlurmError("scontrol did not list any node")
    if len(by_name) != len(hosts):
        raise SlurmError("scontrol listed a node twice")
    return by_name
