"""Every file in the checks package declares a sound check."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from hpcverify.check import Placement
from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.model import Device, Inventory, Part, Side
from hpcverify.plan.catalog import list_check_names, load_check, refuse_wrong_types
from hpcverify.telemetry import problems
from hpcverify.testing import CPU, INVENTORY, make_context
from hpcverify.units import UNIT_FACTORS

NAMES = sorted(list_check_names())
HEAVY = {"torch", "numpy", "pandas", "jinja2", "rich"}


@pytest.mark.parametrize("name", NAMES)
def test_every_check_measures_in_known_units_and_can_be_judged(name: str) -> None:
    check = load_check(name)

    refuse_wrong_types(check, name)
    assert {m.unit for m in check.metrics.values()} <= UNIT_FACTORS.keys()
    assert check.rules or check.finding_rules, "a check without either can never fail"
    assert check.summary == check.summary.strip().rstrip(".")
    for rule in check.rules:
        assert any(
            fnmatchcase(metric, rule) or fnmatchcase(rule, metric) for metric in check.metrics
        ), f"nothing is measured for the rule on {rule}"


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_says_which_side_is_worse_as_its_limits_do(name: str) -> None:
    check = load_check(name)

    assert {metric.worse for metric in check.metrics.values()} <= set(get_args(Side))
    for pattern, rule in check.rules.items():
        shares = [s for s in (rule.of_spec, rule.of_siblings, rule.of_baseline) if s is not None]
        lower = rule.low is not None or any(share <= 1 for share in shares)
        upper = rule.high is not None or any(share > 1 for share in shares)
        for metric in (
            m for n, m in check.metrics.items() if n == pattern or fnmatchcase(n, pattern)
        ):
            if lower != upper:
                assert metric.worse in {"low" if lower else "high", "neither"}, (pattern, metric)


def test_a_check_that_does_not_say_which_side_is_worse_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "old_checks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "level.py").write_text(
        "from hpcverify.check import Metric\nMETRIC = Metric(unit='ms', meaning='the number')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match=r"old_checks\.level cannot be imported.*'worse'"):
        load_check("level", ("old_checks",))


@pytest.mark.parametrize("name", NAMES)
def test_the_parameters_of_every_check_survive_the_wire(name: str) -> None:
    params = load_check(name).params()
    assert msgspec.convert(msgspec.to_builtins(params), type(params)) == params


@pytest.mark.parametrize("name", NAMES)
def test_no_check_takes_a_number_below_zero(name: str) -> None:
    params = load_check(name).params
    for field in params.__struct_fields__:
        for value in (-1, [-1]):
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert({field: value}, params)


@pytest.mark.parametrize("name", NAMES)
def test_every_check_is_given_the_parameters_that_it_takes(name: str) -> None:
    check = load_check(name)
    taken = check.measure.__annotations__["params"]
    assert taken.rpartition(".")[2] == check.params.__name__


H100 = Part("gpu", "gpu-0", "GPU 0", {"compute_capability": "9.0", "memory": "80 GiB"})
GPU = Device("cuda", "gpu-0", "GPU 0")


@pytest.mark.parametrize("device", [CPU, GPU], ids=lambda device: device.kind)
@pytest.mark.parametrize("name", NAMES)
def test_every_check_that_loads_the_node_says_how_long_it_should_take(
    tmp_path: Path, name: str, device: Device
) -> None:
    check = load_check(name)
    node = Inventory(parts=(*INVENTORY.parts, H100), devices=(CPU, GPU))
    ctx = make_context(tmp_path, device=device, inventory=node)
    unknown = make_context(tmp_path, device=device, inventory=Inventory(devices=(CPU, GPU)))

    assert (check.estimate is not None) == (check.placement is not Placement.PASSIVE)
    if check.estimate:
        own = getattr(check.params(), "seconds", 0.0)
        for seen in (ctx, unknown):
            seconds = check.estimate(seen, check.params())
            skipped = seconds == 0 and device is CPU  # the GPUs of the node do it instead
            assert skipped or own <= seconds <= check.timeout


def test_listing_all_checks_loads_nothing_heavy() -> None:
    code = (
        "import sys; from hpcverify.plan.catalog import load_check, list_check_names;"
        "[load_check(n) for n in list_check_names()]; print(*sys.modules)"
    )
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()

    assert HEAVY.isdisjoint(loaded)


@pytest.mark.parametrize("name", ["ecc", "gpu_setup", "inventory", "nvlink", "pcie", "recovery"])
def test_a_check_that_asks_gpus_has_a_ruling_on_each_of_their_problems(name: str) -> None:
    assert problems.PROBLEM_RULES.items() <= load_check(name).finding_rules.items()


def test_a_typo_gets_a_hint() -> None:
    with pytest.raises(UnknownNameError, match="did you mean gemm"):
        load_check("gem")


def test_a_hint_does_not_list_thousands() -> None:
    told = str(UnknownNameError("node", "x", [f"n{i}" for i in range(10_000)]))
    assert told.endswith("and 9980 more")


@pytest.mark.parametrize("name", ["_torch", "../gemm", "gemm.measure", ""])
def test_what_is_no_check_cannot_be_loaded_as_one(name: str) -> None:
    with pytest.raises(UnknownNameError):
        load_check(name)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import no_such_thing", "bad.py:1: ModuleNotFoundError: No module named"),
        ("def", "bad.py:1: SyntaxError: invalid syntax"),
        ("CHECK = 3", "CHECK is not a Check"),
    ],
)
def test_a_check_that_is_broken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str
) -> None:
    package = f"broken_{abs(hash(text))}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "bad.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(ConfigError, match=fault):
        load_check("bad", (package,))


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="'no_such_checks' cannot be imported"):
        list(list_check_names(("no_such_checks",)))
