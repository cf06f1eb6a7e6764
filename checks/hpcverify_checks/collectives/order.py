"""The order for one launcher of ranks."""

from __future__ import annotations

from hpcverify_checks.ranks.collective import CollectiveJob


class LaunchOrder(CollectiveJob, frozen=True, kw_only=True):
    """What to measure, and which ranks this process launches: in a world of 0, one per GPU here."""

    algorithm: str
    """ring or auto; empty: ring between nodes, auto in one."""
    alone: bool
    node: str
    group: str
    """The name of this group of ranks among those of other jobs."""
    ranks: tuple[tuple[int, int], ...]
    """Rank, and rank on its node, of those to launch here."""
    address: str
    """The address of rank 0's node."""
    nodes: tuple[str, ...] = ()
    """The nodes, if there are several and Slurm names them."""
    expected: tuple[str, ...] = ()
    """The node on which each rank should be, as far as Slurm says."""
    second_opinion: bool = False
    """Whether pairs of nodes run ib_write_bw; rank 0's launcher decides."""
    port: int = 0
    """0: a port that follows from *group*, or any free one if all ranks are launched here."""

    @property
    def is_alone(self) -> bool:
        """Whether all ranks are launched here."""
        return len(self.ranks) == self.world
