"""A mistake in a check of the site names its file, and harms no other check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli import Cli

HEAD = """
from collections.abc import Iterator
from hpcverify.check import Check, Finding, FindingRule, Measurement, Metric, Params, Placement
from hpcverify.check import Verdict

def measure(ctx, params):
    {yields}

CHECK = Check(summary="of a vendor", measure=measure, placement=Placement.NODE,
              finding_rules={{"bad": FindingRule(Verdict.FAIL)}}{more})
"""


def write_check(yields: str = "yield from ()", more: str = "") -> str:
    return HEAD.format(yields=yields, more=f", {more}" if more else "")


@pytest.fixture
def package(cli: Cli, tmp_path: Path) -> Path:
    """Add a package of checks to those of the site, and a suite that names one of the tests."""
    folder = tmp_path / "vendor_checks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    cli.config.write_text('check_packages = ["acme_checks", "vendor_checks"]')
    cli.environment["PYTHONPATH"] += f":{tmp_path}"
    cli.suite("own", '[[check]]\nname = "steady"\n')
    cli.suite("both", '[[check]]\nname = "steady"\n[[check]]\nname = "vendor"\n')
    return folder


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "from hpcverify.check import Check\nCHECK = Check(summary='x')\n",
            "vendor.py:2: TypeError",
        ),
        ("import no_such_library\n", "vendor.py:1: ModuleNotFoundError"),
        ("def measure(:\n", "vendor.py:1: SyntaxError"),
        ("1 / 0\n", "vendor.py:1: ZeroDivisionError"),
        ("import sys\nsys.exit(0)\n", "vendor.py:2: SystemExit"),
        ("CHECK = 5\n", "vendor.py: CHECK is not a Check"),
        (write_check(more="timeout='10'"), "vendor.py: CHECK.timeout is '10'"),
        (write_check(more="estimate=5"), "vendor.py: CHECK.estimate is 5"),
        (
            write_check(more="metrics={'x': Metric(unit=5, worse='low', meaning='')}"),
            "CHECK.metrics['x']",
        ),
        (
            write_check(more="metrics={'x': Metric('ms', 'low', '').fail(low='1')}"),
            "CHECK.metrics['x']",
        ),
        (
            write_check(more="metrics={'x': Metric('ms', 'low', '').warn(low=2).fail(low=1)}"),
            "two limits for all that the metric measures",
        ),
        (
            write_check(more="metrics={'x.*': Metric('ms', 'low', '').fail('y.delta', low=1)}"),
            "CHECK.metrics['x.*'] has a limit for 'y.delta', which the metric does not cover",
        ),
        (
            "from hpcverify.check import Params\n"
            "class P(Params, frozen=True):\n    level: float\n" + write_check(more="params=P"),
            "every field needs a default",
        ),
    ],
)
def test_a_check_that_cannot_be_loaded_is_named_and_the_others_go_on(
    cli: Cli, package: Path, source: str, says: str
) -> None:
    (package / "vendor.py").write_text(source)

    listed, checked = cli("checks"), cli("config", "check")
    assert (listed.returncode, checked.returncode) == (2, 2)
    assert {"gemm", "steady"} <= {line.split()[0] for line in listed.stdout.splitlines() if line}
    assert "suite own: 1 checks" in checked.stdout
    assert "suite quick:" in checked.stdout
    for told in (listed.stderr, checked.stderr):
        (line,) = told.splitlines()
        assert says in line
        assert str(package / "vendor.py") in line or "vendor_checks" in line

    assert cli("run", "--suite", "own").returncode == 0
    for command in (("run", "--check", "vendor"), ("run", "--suite", "both")):
        refused = cli(*command)
        assert refused.returncode == 2
        assert says in refused.stderr


@pytest.mark.parametrize(
    ("yields", "says"),
    [
        ("yield Finding('bad', 'the fan is off', 'node')", "has no part 'the fan is off'"),
        ("yield Finding('bad', 'fan 7', 'it is off')", "has no part 'fan 7'"),
        ("yield Measurement('level', 5.0, 3)", "ValidationError"),
        ("yield 5", "may not yield 5"),
        ("return 5", "TypeError"),
        ("raise ValueError('no such fan')", "no such fan"),
        ("raise SystemExit(0)", ""),
    ],
)
def test_a_check_that_yields_nonsense_is_named_and_the_others_are_judged(
    cli: Cli, package: Path, yields: str, says: str
) -> None:
    (package / "vendor.py").write_text(write_check(yields))

    done = cli("run", "--suite", "both", "--json")

    results = {result["check"]: result for result in json.loads(done.stdout)["results"]}
    assert done.returncode == 3
    assert (results["steady"]["verdict"], results["vendor"]["verdict"]) == ("pass", "error")
    assert says in results["vendor"]["reason"]
    assert str(package / "vendor.py") in results["vendor"]["reason"]


@pytest.mark.parametrize("part_id", ["node", "cpu", "/scratch"])
def test_a_finding_about_the_node_a_part_or_a_path_is_judged(
    cli: Cli, package: Path, part_id: str
) -> None:
    """And a check that measures no number declares none."""
    (package / "vendor.py").write_text(
        write_check(f"yield Finding('bad', {part_id!r}, 'it is off')")
    )

    done = cli("run", "--check", "vendor", "--json")

    (result,) = json.loads(done.stdout)["results"]
    assert (done.returncode, result["verdict"]) == (1, "fail")


def test_a_suite_of_every_check_runs_without_the_broken_one_and_says_so(
    cli: Cli, package: Path
) -> None:
    (package / "vendor.py").write_text("1 / 0\n")
    program = """
        from pathlib import Path
        from hpcverify.plan.config import load_site
        from hpcverify.plan.suite import load_suite, make_plan
        from hpcverify.run.local import LocalExecutor
        from hpcverify.run.wire import Measure
        from hpcverify.testing import make_context
        site = load_site()
        steps = {step.name: step for step in make_plan(load_suite("quick"), site).steps}
        assert {"gemm", "steady", "vendor"} <= steps.keys()
        executor = LocalExecutor(should_stop=lambda: False)
        context = make_context(Path.cwd())
        task = Measure(name="vendor", packages=site.packages, params={}, context=context)
        answer = executor.run({"node": task}, 120)["node"]
        executor.close()
        print(answer.outcome.verdict.value, answer.outcome.cause.value, answer.outcome.reason)
    """
    command = [sys.executable, "-c", dedent(program)]
    done = subprocess.run(
        command, env=cli.environment, cwd=package.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("error checker check vendor_checks.vendor cannot be imported")


def test_an_estimate_that_ends_the_program_costs_its_own_check_alone(
    cli: Cli, package: Path
) -> None:
    (package / "vendor.py").write_text(write_check(more="estimate=lambda *_: exit(0)"))
    done = cli("run", "--suite", "both", "--json")
    results = {result["check"]: result["verdict"] for result in json.loads(done.stdout)["results"]}
    assert (done.returncode, results) == (3, {"steady": "pass", "vendor": "error"})


@pytest.mark.parametrize("source", ["1 / 0\n", "import sys\nsys.exit(0)\n"])
def test_a_package_of_checks_with_a_mistake_is_named(cli: Cli, package: Path, source: str) -> None:
    (package / "__init__.py").write_text(source)
    for command in (("checks",), ("config", "check"), ("run", "--suite", "own")):
        done = cli(*command)
        assert done.returncode == 2
        assert str(package / "__init__.py") in done.stderr
