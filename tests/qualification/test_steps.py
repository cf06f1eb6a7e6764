"""Every step that ships can be loaded, and a site's own comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.check import Context, Skip, Unable
from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.model import Device, Inventory
from hpcverify.plan.config import Site, load_site
from hpcverify.plan.suite import Plan, Step, load_suite, make_plan
from hpcverify.qualification import GPU_KIND, QUICK, STEP_NAMES, list_packages, load_steps
from hpcverify.run.gather import assign_workers, estimate_seconds, select_devices
from hpcverify.testing import make_context
from tests.cli import Cli
from tests.plan.test_budget import NODE

START_SECONDS = 10.0
"""For a worker of a GPU, and for each group of NCCL: assumed, as in `tests.plan.test_budget`."""


def test_all_steps_ship_and_every_check_in_them_exists() -> None:
    steps = load_steps(Site())

    assert tuple(step.name for step in steps) == STEP_NAMES
    assert all(step.plan or step.provable for step in steps)


def test_the_budget_of_each_step_holds_on_eight_gpus(tmp_path: Path) -> None:
    for step in load_steps(Site()):
        if step.plan and step.name != QUICK:  # whose budget has a test of its own
            starts = START_SECONDS * (1 + sum(s.is_active for s in step.plan.steps))
            assert estimate_plan(step.plan, tmp_path) + starts <= step.budget, step


def estimate_plan(plan: Plan, folder: Path) -> float:
    """Add up one round of *plan* on the GPUs of a node; in each phase the slowest counts."""
    gpus = select_devices(NODE, GPU_KIND)
    active = [step for step in plan.steps if step.is_active]
    phases = [
        (step, phase)
        for step in active
        for phase in assign_workers(step.check.placement, gpus.devices)
    ]
    seconds = sum(
        max(estimate_on(step, device, gpus, folder) for device in phase.values())
        for step, phase in phases
    )
    return (len(active) - 1) * plan.settle + seconds


def estimate_on(step: Step, device: Device, gpus: Inventory, folder: Path) -> float:
    ctx: Context = make_context(folder, device=device, peers=gpus.devices, inventory=gpus)
    try:
        if step.check.applies:
            step.check.applies(ctx)
        return estimate_seconds(step, [ctx]) or 0.0
    except (Skip, Unable):
        return 0.0


def test_all_steps_end_in_less_than_two_hours() -> None:
    assert sum(step.rest + step.budget for step in load_steps(Site())) < 2 * 3600


def test_a_step_that_measures_speed_begins_on_gpus_that_have_cooled() -> None:
    rests = {step.name: step.rest for step in load_steps(Site())}

    assert min(rests["products"], rests["soak"]) >= 30
    assert rests["facts"] == 0


def test_steps_are_named() -> None:
    assert [step.name for step in load_steps(Site(), ["products", "facts"])] == [
        "facts",
        "products",
    ]
    with pytest.raises(UnknownNameError, match="did you mean products"):
        load_steps(Site(), ["product"])


def test_a_sites_own_step_comes_first(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(cli.config))
    folder = cli.config.parent / "suites" / "qualification"
    folder.mkdir(parents=True)
    text = 'summary = "how fast?"\nbudget = 7\n[[check]]\nname = "bare_gemm"\n'
    (folder / "products.toml").write_text(text)
    cli.config.write_text("")
    (step,) = load_steps(load_site(), ["products"])

    assert (step.question, step.budget) == ("how fast?", 7)


def test_a_mistake_in_a_sites_own_step_names_its_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(cli.config))
    folder = cli.config.parent / "suites" / "qualification"
    folder.mkdir(parents=True)
    (folder / "soak.toml").write_text('summary = "x"\nbudgit = 7\n')
    cli.config.write_text("")

    with pytest.raises(ConfigError, match=r"qualification/soak\.toml"):
        load_steps(load_site(), ["soak"])


def test_measurements_of_a_qualification_are_no_checks_of_a_site() -> None:
    assert "hpcverify_checks.qualification" not in Site().packages
    assert list_packages(Site())[-1] == "hpcverify_checks.qualification"


def test_quick_is_the_suite_of_every_day_and_has_no_measurements_of_a_qualification() -> None:
    (quick,) = load_steps(Site(), ["quick"])

    assert quick.plan == make_plan(load_suite("quick"), Site())
    assert quick.device_kind == ""


def test_measurements_are_found_beside_the_checks() -> None:
    names = {s.name for step in load_steps(Site()) if step.plan for s in step.plan.steps}

    assert {"software", "bare_gemm", "exactness", "nccl_tests"} <= names
