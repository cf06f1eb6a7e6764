"""A process knows its place in a job step by what srun tells it, and no batch script has one."""

from __future__ import annotations

import pytest

from hpcverify.errors import ConfigError
from hpcverify.slurm.step import StepPlace, read_step

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[009-010]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


def test_srun_tells_rank_world_and_the_node_of_each_rank() -> None:
    assert read_step(STEP) == StepPlace(
        rank=3,
        world=4,
        local_rank=1,
        nodes=("gpu009", "gpu010"),
        expected=("gpu009", "gpu009", "gpu010", "gpu010"),
        job=4711,
        step="2",
    )


@pytest.mark.parametrize(
    "change", [{"SLURM_DISTRIBUTION": "cyclic"}, {"SLURM_STEP_TASKS_PER_NODE": "3,2"}]
)
def test_where_ranks_are_is_not_guessed(change: dict[str, str]) -> None:
    place = read_step(STEP | change)
    assert place is not None
    assert place.expected == ()


def test_one_rank_on_each_node_is_in_their_order_by_srun_s_own_choice() -> None:
    """That is cyclic where there are no more ranks than nodes."""
    one_each = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "1",
        "SLURM_DISTRIBUTION": "cyclic",
    }
    place = read_step(STEP | one_each)
    assert place is not None
    assert place.expected == ("gpu009", "gpu010")

    place = read_step(STEP | one_each | {"SLURM_DISTRIBUTION": "arbitrary"})
    assert place is not None
    assert place.expected == ()


def test_a_batch_script_and_a_shell_are_in_no_step() -> None:
    batch = {name: value for name, value in STEP.items() if not name.startswith("SLURM_STEP")}
    assert read_step(batch) is None
    assert read_step({}) is None


@pytest.mark.parametrize("broken", [{"SLURM_PROCID": "x"}, {"SLURM_STEP_TASKS_PER_NODE": "?"}])
def test_an_environment_without_sense_is_told(broken: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="srun's environment makes no sense"):
        read_step(STEP | broken)
