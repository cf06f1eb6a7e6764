"""The budgets of the suites hold on eight GPUs, by arithmetic that the docs show."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.check import Context, Skip
from hpcverify.model import Device, Inventory, Part
from hpcverify.plan.config import Site
from hpcverify.plan.suite import Plan, Step, load_suite, make_plan
from hpcverify.run.gather import assign_workers
from hpcverify.telemetry import name_sensor
from hpcverify.testing import CPU, make_context
from hpcverify_checks.second_opinion.tools import TOOLS

PAGE = Path(__file__).parents[2] / "docs/internals/benchmarks.md"
BEGIN, END = "<!-- budgets -->\n", "<!-- /budgets -->"
SUITES = ("quick", "idle", "burnin")
MAX_SHARE = 0.9
"""Of the budget: the rest is for a node that is busy."""
WORKER_START_SECONDS = 10.0
"""For Python, torch and CUDA; assumed, since no GPU has been measured."""
WORKERS = 3
"""That load torch: the CPU's, those of the GPUs at the same time, and the node's."""
NCCL_START_SECONDS = 5.0
"""Likewise assumed."""
NCCL_CHECKS = ("training", "allreduce")
PASSIVE_SECONDS = 5.0
"""For all looks of the checks that only read: 0.1 s each on the NVML double."""
BMC_SECONDS = 4.0
"""For one look of `chassis`; assumed, since only a simulated BMC has been measured."""

GPUS = tuple(Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(8))
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "compute_capability": "9.0",
    "memory": "80 GiB",
    "driver": "580.95",
}
NODE = Inventory(
    parts=(
        Part("cpu", "cpu", "CPU", {"threads": "128", "dtypes": "bf16 fp16 fp32 fp64 int8"}),
        *(Part("gpu", gpu.part, gpu.label, H100) for gpu in GPUS),
        Part("disk", "disk-1", "nvme0n1", {"rotational": "no"}),
        Part("mount", "mount-/scratch", "/scratch", {"disk": "disk-1"}),
    ),
    devices=(CPU, *GPUS),
    sensors=tuple(name_sensor(device.part, "temperature") for device in (CPU, *GPUS)),
)


@pytest.fixture(autouse=True)
def _with_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in TOOLS:  # the node has all that `second_opinion` can ask
        (tmp_path / tool.name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def estimate(step: Step, folder: Path) -> float:
    """Add up the phases of a check; in each the slowest worker counts."""
    phases = assign_workers(step.check.placement, NODE.devices)
    return sum(max(estimate_on(step, d, folder) for d in phase.values()) for phase in phases)


def estimate_on(step: Step, device: Device, folder: Path) -> float:
    peers = tuple(d for d in NODE.devices if d.kind == device.kind)
    ctx: Context = make_context(folder, device=device, peers=peers, inventory=NODE)
    assert step.check.estimate is not None
    try:
        if step.check.applies:
            step.check.applies(ctx)
    except Skip:
        return 0.0
    return step.check.estimate(ctx, step.params)


def list_active(plan: Plan) -> list[Step]:
    return [step for step in plan.steps if step.is_active]


def list_costs(plan: Plan, folder: Path) -> dict[str, float]:
    """List what takes time in one round of *plan*, with the seconds that it takes at most."""
    active = list_active(plan)
    return {
        **{step.name: estimate(step, folder) for step in active},
        "settling": (len(active) - 1) * plan.settle,
        "starts": WORKERS * WORKER_START_SECONDS + len(NCCL_CHECKS) * NCCL_START_SECONDS,
        "checks that only read": PASSIVE_SECONDS,
        "the BMC, asked twice": 2 * BMC_SECONDS,
    }


@pytest.mark.parametrize("name", SUITES)
def test_the_budget_of_a_suite_holds_on_eight_gpus(tmp_path: Path, name: str) -> None:
    plan = make_plan(load_suite(name), Site())
    costs = list_costs(plan, tmp_path)

    assert plan.rounds * sum(costs.values()) <= MAX_SHARE * plan.budget
    for step in list_active(plan):
        assert costs[step.name] > 0
        assert costs[step.name] <= step.timeout * len(GPUS)


def test_the_docs_show_the_arithmetic(tmp_path: Path) -> None:
    plans = {name: make_plan(load_suite(name), Site()) for name in SUITES}
    costs = {name: list_costs(plan, tmp_path) for name, plan in plans.items()}
    rows = [
        [what, *(f"{costs[n].get(what, 0):.0f} s" for n in SUITES)]
        for what in costs["burnin"]  # which has every check
    ]
    total = [f"{sum(costs[n].values()):.0f} s" for n in SUITES]
    rows += [
        ["**one round**", *total],
        ["rounds", *(str(plans[n].rounds) for n in SUITES)],
        ["**budget**", *(f"{plans[n].budget:.0f} s" for n in SUITES)],
    ]
    head = ["seconds at most", *(f"`{n}`" for n in SUITES)]
    lines = [head, ["---"] * len(head), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)

    assert PAGE.read_text().split(BEGIN)[1].split(END)[0] == table
