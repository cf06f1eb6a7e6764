"""What is assumed of jobs: apart, since every command reads the site file, hooks too."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class JobAssumptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is assumed of the jobs of a site: the table ``[reliability]``."""

    checkpoint_write_minutes: Annotated[float, Meta(gt=0)] = 5.0
    """How long a job stands still to write a checkpoint."""
    restart_minutes: Annotated[float, Meta(ge=0)] = 10.0
    """From a failure to the first new step, without the time in the queue."""
    gpus_per_node: Annotated[int, Meta(ge=0)] = 8
    """The GPUs of a node, by which the sizes of jobs are counted."""
