"""
The steps of a qualification, from cheap to dear.

All but two are suites of their own: TOML files beside the measurements that only a
qualification takes. A site's own files come first, as for suites.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hpcverify.check import Check
from hpcverify.errors import UnknownNameError
from hpcverify.plan.catalog import BUILTIN_PACKAGE
from hpcverify.plan.config import Site, read_toml, suites_dir
from hpcverify.plan.suite import Plan, Suite, load_suite, make_plan, refuse_endless
from hpcverify.run.selftest import load_provable_checks
from hpcverify.trust import refuse_if_others_can_change

QUALIFICATION_PACKAGE = f"{BUILTIN_PACKAGE}.qualification"
SELFTEST, QUICK = "selftest", "quick"
STEP_NAMES = (
    "facts",
    SELFTEST,
    "driver",
    "arithmetic",
    "links",
    "products",
    "soak",
    "training",
    QUICK,
    "corruption",
)
"""In the order in which they run."""
SELFTEST_QUESTION = "does every check that can try itself find the faults that it injects?"
QUICK_QUESTION = "how long does the suite quick take on this node, check by check?"
GPU_KIND = "cuda"
"""The kind of devices that is qualified; `QUICK` has them all."""


class QualificationStep(Struct, frozen=True, kw_only=True):
    """One step: a plan of checks, or the selftests of *provable* ones."""

    name: str
    question: str
    budget: float
    """Seconds after which it is ended."""
    plan: Plan | None = None
    provable: dict[str, Check[Any]] = {}
    device_kind: str = GPU_KIND

    @property
    def rest(self) -> float:
        """Seconds to wait before it: a run knows only of its own loads."""
        return self.plan.settle if self.plan else 0.0


def load_steps(site: Site, only: Iterable[str] = ()) -> tuple[QualificationStep, ...]:
    """
    Load all steps, or *only* those with these names.

    Raises:
        UnknownNameError: there is no such step.
        ConfigError: a file of the site is wrong.

    """
    chosen = frozenset(only)
    for name in chosen.difference(STEP_NAMES):
        raise UnknownNameError("step", name, STEP_NAMES)
    return tuple(_load_step(name, site) for name in STEP_NAMES if not chosen or name in chosen)


def list_packages(site: Site) -> tuple[str, ...]:
    """List the packages with the checks and measurements of the steps."""
    return (*site.packages, QUALIFICATION_PACKAGE)


def _load_step(name: str, site: Site) -> QualificationStep:
    if name == SELFTEST:
        provable = load_provable_checks(None, site.packages)
        budget = sum(check.timeout for check in provable.values())
        return QualificationStep(
            name=name, question=SELFTEST_QUESTION, budget=budget, provable=provable
        )
    if name == QUICK:
        plan = make_plan(load_suite(QUICK), site)
        return QualificationStep(
            name=name, question=QUICK_QUESTION, budget=plan.budget, plan=plan, device_kind=""
        )
    suite = _load_own_suite(name)
    plan = make_plan(suite, site, packages=list_packages(site))
    refuse_endless(plan)
    return QualificationStep(name=name, question=suite.summary, budget=plan.budget, plan=plan)


def _load_own_suite(name: str) -> Suite:
    path = next(path for path in _list_files(name) if path.is_file())
    if path.parent.parent == suites_dir():
        refuse_if_others_can_change(path)
    return msgspec.structs.replace(read_toml(path, Suite), name=name)


def _list_files(name: str) -> Iterator[Path]:
    yield suites_dir() / "qualification" / f"{name}.toml"
    for folder in import_module(QUALIFICATION_PACKAGE).__path__:
        yield Path(folder) / f"{name}.toml"
