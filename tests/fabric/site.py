"""A site on a fabric with faults: the controller's commands, and what its isolations say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from hpcverify.isolation.answer import IsolationAnswer, describe_answer
from hpcverify.isolation.journal import JOURNAL_NAME
from tests.fabric_lab.cluster import Fabric
from tests.fleet.cluster import HPCVERIFY, Fleet

PROGRAM = """#!/bin/sh
export HPCVERIFY_CONFIG={config} HPCVERIFY_STATE={folder}/nodes/$SLURMD_NODENAME
export OMP_NUM_THREADS=1
exec {hpcverify} "$@" >>{folder}/log.$SLURMD_NODENAME 2>&1
"""
"""Unlike that of other tests it stays in the network of its node. All share two CPUs, say."""


class FabricSite:
    """The controller of a site whose nodes are those of *fabric*."""

    def __init__(self, fabric: Fabric, folder: Path) -> None:
        self.fabric = fabric
        self.fleet = Fleet(fabric.cluster, folder)
        self.fleet.prepare()
        program = self.fleet.folder / "hpcverify"
        program.write_text(
            PROGRAM.format(config=self.fleet.config, folder=folder, hpcverify=HPCVERIFY)
        )

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin an isolation of all nodes, or go on with one."""
        return self.fleet.begin("fabric", "bisect", "--json", *arguments)

    def isolate(self, *arguments: str) -> tuple[IsolationAnswer, int]:
        return finish(self.begin(*arguments))

    def count_lines(self, kind: str) -> int:
        """Count the entries of a kind in the journal of the last isolation."""
        return len(self._read_journal(kind))

    def list_tested(self) -> list[tuple[object, ...]]:
        """List the round and places of the tests of each job that has ended, as it did."""
        return [(one["round"], *one["tests"]) for one in self._read_journal("ended")]

    def _read_journal(self, kind: str) -> list[dict[str, Any]]:
        journals = sorted(self.fleet.folder.glob(f"controller/isolations/*/{JOURNAL_NAME}"))
        lines = journals[-1].read_text().splitlines(keepends=True) if journals else []
        entries = [json.loads(line) for line in lines if line.endswith("\n")]
        return [entry for entry in entries if entry["kind"] == kind]


def finish(begun: subprocess.Popen[str]) -> tuple[IsolationAnswer, int]:
    """Wait for the end of an isolation; it prints what it says."""
    said, _ = begun.communicate()
    start = said.find("\n{\n") + 1
    assert begun.returncode in (0, 1, 3), said
    print(said[:start])  # noqa: T201 - for a test that failed
    answer = msgspec.json.decode(said[start:], type=IsolationAnswer)
    print("\n".join(describe_answer(answer)))  # noqa: T201
    return answer, begun.returncode


@contextmanager
def a_site(fabric: Fabric) -> Generator[FabricSite]:
    with TemporaryDirectory(prefix="hvfabric-", dir="/tmp") as name:
        yield FabricSite(fabric, Path(name))
