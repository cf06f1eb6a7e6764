"""Every step that ships can be loaded, and a site's own comes first."""

from __future__ import annotations

import pytest

from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.plan.config import Site, load_site
from hpcverify.qualification.steps import STEP_NAMES, list_packages, load_steps
from tests.cli import Cli


def test_all_steps_ship_and_every_check_in_them_exists() -> None:
    steps = load_steps(Site())

    assert tuple(step.name for step in steps) == STEP_NAMES
    assert all(step.plan or step.provable for step in steps)


def test_a_step_ends_in_its_budget_and_all_together_in_less_than_two_hours() -> None:
    assert sum(step.budget for step in load_steps(Site())) <= 2 * 3600


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


def test_measurements_are_found_beside_the_checks() -> None:
    names = {s.name for step in load_steps(Site()) if step.plan for s in step.plan.steps}

    assert {"software", "bare_gemm", "exactness", "nccl_tests", "memory_release"} <= names
