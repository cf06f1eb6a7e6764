"""
A Slurm on paper, for tests of what the controller makes of its answers.

It stands where Slurm's commands are run: what the controller asks it answers as 24.11
does, and what it is told it does at once. Nothing here knows of hpcverify.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from hpcverify.errors import SlurmError
from hpcverify.plan.hostlist import expand

ME = pwd.getpwuid(os.geteuid()).pw_name
"""The user of the controller, who sets reasons."""
PARTITIONS = ("batch", "verify")
PARTITION = (
    "PartitionName=verify AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL GraceTime=0"
    " MaxTime=UNLIMITED Nodes=(null) PriorityTier=1 RootOnly=NO PreemptMode=CANCEL"
    " State=UP"
)


@dataclass
class PaperNode:
    """A node, and how it is held."""

    drained: bool = False
    reason: str = ""
    by: str = ME
    state: str = "IDLE"
    at: float = 0
    """When the reason was set."""


@dataclass
class PaperJob:
    """A job that goes on until it is cancelled."""

    id: int
    name: str
    state: str = "RUNNING"
    end: int = 0


@dataclass
class PaperSlurm:
    """Runs commands of Slurm as a cluster of *nodes* would."""

    nodes: dict[str, PaperNode]
    reserved: set[str] = field(default_factory=set[str])
    """The nodes in a reservation of their own."""
    shared: dict[str, str] = field(default_factory=dict[str, str])
    """Reservations of several nodes, by name."""
    jobs: dict[int, PaperJob] = field(default_factory=dict[int, PaperJob])
    began: float = 1.0
    """When slurmctld was started."""
    clock: Callable[[], float] = time.time
    topology: str = ""
    """What it says of its switches; nothing without any."""
    ended: str = ""
    """What accounting has of everybody's jobs; without any, the site keeps no account."""
    avoided: str = ""
    """Users and the nodes that their jobs must not use."""
    asked: list[str] = field(default_factory=list[str])
    """The questions, in order."""
    told: list[str] = field(default_factory=list[str])
    """The orders, in order."""
    omitted: dict[str, list[set[str]]] = field(default_factory=dict[str, list[set[str]]])
    """By question, what each of the next answers leaves out; then they are whole."""

    def __call__(self, command: Sequence[str]) -> str:
        if command[0] == "sacct":
            return self.ended
        if command[:2] != ["scontrol", "show"] and command[0] != "squeue":
            return self._told(list(command))
        if command[0] == "squeue" and "-o" in command:
            return self.avoided
        question = "jobs" if command[0] == "squeue" else command[2]
        self.asked.append(question)
        answers: dict[str, Callable[[], str]] = {
            "nodes": lambda: self._show_nodes([n for n in command[3:] if n != "--json"]),
            "reservation": self._show_reservations,
            "config": self._show_config,
            "partition": lambda: PARTITION,
            "topology": lambda: self.topology,
        }
        return answers.get(question, self._show_jobs)()

    def holds(self, name: str) -> tuple[bool, str]:
        return self.nodes[name].drained, self.nodes[name].reason

    def drain(self, names: Iterable[str], reason: str, by: str = ME) -> None:
        for name in names:
            self.nodes[name] = PaperNode(drained=True, reason=reason, by=by, at=self.clock())

    def resume(self, *names: str) -> None:
        """Be an administrator who resumes nodes, or a reboot with nextstate=RESUME."""
        for name in names:
            self.nodes[name] = PaperNode()

    def _without(self, question: str) -> set[str]:
        coming = self.omitted.get(question)
        return coming.pop(0) if coming else set()

    def _show_nodes(self, names: Sequence[str]) -> str:
        left_out = self._without("nodes")
        asked = expand(names[0]) if names else self.nodes
        shown = [self._shown(n) for n in asked if n in self.nodes and n not in left_out]
        return msgspec.json.encode({"nodes": shown, "errors": []}).decode()

    def _shown(self, name: str) -> dict[str, object]:
        node = self.nodes[name]
        flags = ["DRAIN"] if node.drained else []
        flags += ["MAINT", "RESERVED"] if name in self.reserved else []
        return {
            "name": name,
            "state": [node.state, *flags],
            "boot_time": 1,
            "partitions": PARTITIONS,
            "reason": node.reason,
            "reason_set_by_user": node.by,
            "reason_changed_at": int(node.at),
        }

    def _show_reservations(self) -> str:
        there = {f"hpcverify-{name}": name for name in sorted(self.reserved)} | self.shared
        if not there:
            return "No reservations in the system\n"
        return "".join(
            f"ReservationName={name} Nodes={nodes} Flags=MAINT State=ACTIVE\n"
            for name, nodes in there.items()
        )

    def _show_config(self) -> str:
        accounts = "accounting_storage/slurmdbd" if self.ended else "none"
        return (
            f"SlurmUser = slurm(64030)\nAccountingStorageType = {accounts}\n"
            f"BOOT_TIME = {self.began:.0f}\n"
        )

    def _show_jobs(self) -> str:
        left_out = self._without("jobs")
        rows = [
            (job.id, job.state, "n1", 1, job.end, "N/A", "0:0", "None", job.name)
            for job in self.jobs.values()
            if job.name not in left_out
        ]
        return "".join("|".join(map(str, row)) + "|\n" for row in rows)

    def _told(self, command: Sequence[str]) -> str:
        if command[1] == "--version":
            return "slurm 24.11.5\n"
        self.told.append(" ".join(command))
        words = dict(word.split("=", 1) for word in command if "=" in word)
        match list(command[:2]):
            case ["scontrol", "update"]:
                self._update(self._named(words["nodename"]), words)
            case ["scontrol", "create"]:
                if words["reservationname"] == f"hpcverify-{words['nodes']}":
                    self.reserved.add(words["nodes"])
                else:
                    self.shared[words["reservationname"]] = words["nodes"]
            case ["scontrol", "delete"]:
                self.reserved.discard(words["reservationname"].removeprefix("hpcverify-"))
                self.shared.pop(words["reservationname"], None)
            case ["sbatch", _]:
                number = len(self.jobs) + 100
                (name,) = re.findall(r"--job-name=(\S+)", " ".join(command))
                self.jobs[number] = PaperJob(number, name, "PENDING")
                return f"{number}\n"
            case ["scancel", *_]:
                for number in map(int, command[1:]):
                    self.jobs[number].state, self.jobs[number].end = "CANCELLED", 2
            case _:
                raise AssertionError(command)
        return ""

    def _named(self, name: str) -> PaperNode:
        if name not in self.nodes:
            raise SlurmError(f"scontrol: Invalid node name specified: {name}")
        return self.nodes[name]

    def _update(self, node: PaperNode, words: dict[str, str]) -> None:
        match words.get("state"):
            case "drain":
                node.drained = True
            case "undrain":
                node.drained, node.reason, node.at = False, "", 0
            case _:
                pass
        reason = words.get("reason", "").removeprefix('"').removesuffix('"')
        if reason.strip():
            node.reason, node.by, node.at = reason, ME, self.clock()
