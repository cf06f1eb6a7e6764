"""
Holds nodes by a site's own script, where Slurm is not what takes them out of service.

    SCRIPT look                   print NODE<TAB>HELD<TAB>REASON, a line for every node
    SCRIPT drain NODE REASON      keep all jobs off it
    SCRIPT resume NODE            undo that
    SCRIPT restore NODE REASON    set somebody else's reason again
    SCRIPT reserve NODE           keep it for the verification alone, by a Slurm
                                  reservation called hpcverify-NODE
    SCRIPT unreserve NODE         undo that

HELD is ``free``, ``held``, ``reserved``, ``held+reserved`` while one replaces the other,
or ``other``: in a state that forbids touching it, as REASON says. We recognize our own
holds by the reason, so it must come back exactly as it was given. Every call may be
repeated; an exit status other than 0 means that it was not done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcverify.check import Unable
from hpcverify.errors import ActionError, ConfigError
from hpcverify.fleet.holds import HoldReading, parse_hold_id
from hpcverify.processes import CompletedTool, run_tool
from hpcverify.trust import refuse_if_others_can_change

TIMEOUT_S = 60.0
"""How long the script has for one call; Slurm's own commands give up after 10 s."""

_HELD_VALUES = frozenset({"free", "held", "reserved", "held+reserved", "other"})


@dataclass(frozen=True)
class ScriptBackend:
    """
    Calls the *script*, by its absolute path.

    Every method raises an ActionError if it fails or takes too long, and a ConfigError
    if it is missing or others than root could change it.
    """

    script: Path
    timeout: float = TIMEOUT_S

    def read_holds(self) -> Mapping[str, HoldReading]:
        """Read how all nodes are held that the script names."""
        printed = self._run("look")
        nodes = [self._parse_line(line) for line in printed.split("\n") if line]
        there = {seen.node: seen for seen in nodes}
        if not nodes or len(there) != len(nodes):
            raise self._build_error("names no node" if not nodes else "names a node twice")
        return there

    def read_hold(self, node: str) -> HoldReading:
        """Read how one node is held, from a new answer about all."""
        there = self.read_holds()
        if node not in there:
            raise self._build_error(f"does not name {node}")
        return there[node]

    def read_start_time(self) -> float:
        """Return 0: we take it that the script forgets nothing."""
        return 0.0

    def drain(self, node: str, reason: str) -> None:
        """Keep all jobs off *node*."""
        self._run("drain", node, reason)

    def resume(self, node: str) -> None:
        """Undo `drain`."""
        self._run("resume", node)

    def restore(self, node: str, reason: str) -> None:
        """Set somebody else's reason of *node* again."""
        self._run("restore", node, reason)

    def reserve(self, node: str) -> None:
        """Keep *node* for the verification."""
        self._run("reserve", node)

    def unreserve(self, node: str) -> None:
        """Undo `reserve`."""
        self._run("unreserve", node)

    def _run(self, *words: str) -> str:
        done = self._run_script(*words)
        if done.returncode != 0:
            error = done.stderr.decode(errors="replace").strip().split("\n")[0]
            why = error or f"exit status {done.returncode}, without an error message"
            raise ActionError(f"{self.script} {' '.join(words[:2])}: {why}")
        return done.stdout.decode(errors="replace")

    def _run_script(self, *words: str) -> CompletedTool:
        if not self.script.is_absolute():
            raise ConfigError(f"quarantine.command: {str(self.script)!r} is not an absolute path")
        try:
            refuse_if_others_can_change(self.script)
            return run_tool([str(self.script), *words], timeout=self.timeout)
        except Unable as exc:
            raise ActionError(f"{self.script} {words[0]}: {exc}") from exc
        except OSError as exc:
            raise ConfigError(f"{self.script} cannot be run: {exc.strerror}") from exc

    def _parse_line(self, line: str) -> HoldReading:
        node, held, reason = [*line.split("\t", 2), "", ""][:3]
        if not node or held not in _HELD_VALUES:
            raise self._build_error(f"says {line[:80]!r}, not NODE, HELD and REASON")
        drained = held.startswith("held")
        return HoldReading(
            node=node,
            hold_id=parse_hold_id(reason) if drained else "",
            reason=reason,
            drained=drained,
            unavailable="kept out of reach" if held == "other" else "",
            reserved=held.endswith("reserved"),
        )

    def _build_error(self, what: str) -> ActionError:
        return ActionError(f"{self.script} look: it {what}")
