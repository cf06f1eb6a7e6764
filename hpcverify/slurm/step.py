"""Which rank of which job step this process is, as srun tells it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hpcverify.errors import ConfigError
from hpcverify.plan.hostlist import expand


class StepPlace(Struct, frozen=True):
    """The place of a process in its job step."""

    rank: int
    world: int
    local_rank: int
    """Among the processes of the step on this node."""
    nodes: tuple[str, ...]
    """The first is where rank 0 is."""
    expected: tuple[str, ...]
    """The node of each rank; empty if srun does not hand them out in the order of the nodes."""
    job: int
    step: str


def read_step(environ: Mapping[str, str]) -> StepPlace | None:
    """Read the place from the environment; None without srun, as in a batch script."""
    if "SLURM_STEP_ID" not in environ or "SLURM_STEP_NUM_TASKS" not in environ:
        return None
    try:
        rank, world = int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"])
        nodes = tuple(expand(environ["SLURM_STEP_NODELIST"]))
        place = StepPlace(
            rank=rank,
            world=world,
            local_rank=int(environ["SLURM_LOCALID"]),
            nodes=nodes,
            expected=_list_expected(environ, nodes, world),
            job=int(environ["SLURM_JOB_ID"]),
            step=environ["SLURM_STEP_ID"],
        )
    except (KeyError, ValueError) as exc:
        raise ConfigError(f"srun's environment makes no sense ({exc!r}): see --rank") from exc
    return place


def _list_expected(
    environ: Mapping[str, str], nodes: tuple[str, ...], world: int
) -> tuple[str, ...]:
    counts: list[int] = []
    for term in environ["SLURM_STEP_TASKS_PER_NODE"].split(","):
        tasks, _, times = term.rstrip(")").partition("(x")  # as 8(x4)
        counts += [int(tasks)] * int(times or 1)
    if len(counts) != len(nodes) or sum(counts) != world:
        return ()
    # One rank on each node is what srun calls cyclic by itself, and the same as in blocks.
    in_order = ("block", "cyclic") if world == len(nodes) else ("block",)
    if not environ.get("SLURM_DISTRIBUTION", "block").startswith(in_order):
        return ()
    return tuple(node for node, tasks in zip(nodes, counts, strict=True) for _ in range(tasks))
