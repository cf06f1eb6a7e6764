"""What a tool of others finds fails the node; one that cannot tell accuses nobody."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcverify.check import Skip, Unable
from hpcverify.model import Cause, CheckItem, Coverage, Remedy, Verdict
from hpcverify.processes import CompletedTool, run_tool
from hpcverify.testing import find_value, judge_items, list_findings, make_context
from hpcverify_checks.second_opinion import CHECK, SecondOpinionParams, applies, measure
from hpcverify_checks.second_opinion.tools import (
    read_cpu_check,
    read_stressapptest,
)

RECORDED = Path(__file__).parent / "recorded"
SHORT = SecondOpinionParams(seconds=5)
NO_MEMORY = """
Process Error: memalign returned 0
Process Error: failed to allocate memory
Status: FAIL - test encountered procedural errors
"""
"""What stressapptest 1.0.6 says for -M 999999."""

Installer = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    """Make a node with no tool, and a function that installs a script as one of them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("unshare", "cat", "readlink", "sleep"):
        (folder / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, script: str) -> Path:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return folder / name

    return put


def found(tmp_path: Path, **seams: Any) -> list[CheckItem]:
    return list(measure(make_context(tmp_path), SHORT, **seams))


def list_coverage(items: list[CheckItem]) -> list[str]:
    return [item.text for item in items if isinstance(item, Coverage)]


@pytest.mark.needs("stressapptest")
def test_the_real_stressapptest_passes_good_memory(tmp_path: Path, install: Installer) -> None:
    real = shutil.which("stressapptest", path=os.defpath)
    install("stressapptest", f'exec {real} "$@"')
    items = found(tmp_path)
    assert judge_items(CHECK, items).verdict is Verdict.PASS
    assert find_value(items, "stressapptest.errors") == 0
    (told,) = list_coverage(items)
    assert told.startswith("stressapptest: ")
    assert told.endswith(" MiB of copies compared in 5 s")


@pytest.mark.needs("stressapptest")
def test_an_error_that_the_real_stressapptest_injects_fails_the_node(
    tmp_path: Path, install: Installer
) -> None:
    real = shutil.which("stressapptest", path=os.defpath)
    install("stressapptest", f'exec {real} "$@" --force_errors')
    items = found(tmp_path)
    judgement = judge_items(CHECK, items)
    assert (judgement.verdict, judgement.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    (finding,) = list_findings(items)
    assert (finding.code, finding.part_id) == ("miscompare", "node")
    assert not CHECK.finding_rules[finding.code].conclusive  # we cannot prove what others say
    assert "hardware errors; the first: miscompare on CPU " in finding.text
    assert find_value(items, "stressapptest.errors")


def test_the_core_that_cpu_check_suspects_is_named(tmp_path: Path, install: Installer) -> None:
    told = tmp_path / "arguments"
    install("cpu_check", f'echo "$@" >{told}\ncat {RECORDED}/cpu_check_fail.txt >&2; exit 1')
    items = found(tmp_path)
    assert judge_items(CHECK, items).verdict is Verdict.FAIL
    (finding,) = list_findings(items)
    assert (finding.code, finding.part_id) == ("miscompare", "cpu1")
    assert finding.text.startswith("cpu_check counted 6 hardware errors; the first: err: hash, ")
    assert finding.text.endswith("; it suspects core 1")
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    assert told.read_text().split() == ["-g", "-t5", f"-c{cores}", "-q20"]


def test_suspects_that_differ_are_listed_and_none_is_accused() -> None:
    one = (RECORDED / "cpu_check_fail.txt").read_text()
    other = one.replace("Suspect LPU: 1", "Suspect LPU: 0", 1)
    assert set(read_cpu_check(one).suspects) == {1}
    assert set(read_cpu_check(other).suspects) == {0, 1}


def test_a_tool_that_finds_nothing_passes_the_node(tmp_path: Path, install: Installer) -> None:
    install("cpu_check", f"cat {RECORDED}/cpu_check_pass.txt >&2")
    items = found(tmp_path)
    assert judge_items(CHECK, items).verdict is Verdict.PASS
    assert list_coverage(items) == ["cpu_check: 69 rounds compared in 5 s"]


@pytest.mark.usefixtures("install")
def test_a_node_without_any_tool_is_skipped_before_it_cools(tmp_path: Path) -> None:
    with pytest.raises(Skip, match="installed: apt-get install stressapptest, or b") as caught:
        applies(make_context(tmp_path))
    assert caught.value.cause is Cause.NOT_OBSERVABLE
    with pytest.raises(Skip):
        found(tmp_path)


@pytest.mark.parametrize(
    ("script", "cause", "says"),
    [
        (f"echo '{NO_MEMORY}'; exit 1", Cause.MISCONFIGURED, "status 1 (memalign returned 0)"),
        ("kill -SEGV $$", Cause.CRASHED, "was killed by SIGSEGV"),
        ("exit 0", Cause.UNMEASURED, "stressapptest compared nothing"),
        ("sleep 600", Cause.TIMEOUT, "did not end within 0.3 s"),
    ],
)
def test_a_tool_without_an_opinion_is_an_error_and_the_other_is_still_asked(
    tmp_path: Path, install: Installer, script: str, cause: Cause, says: str
) -> None:
    def run(command: list[str], timeout: float) -> CompletedTool:
        return run_tool(command, timeout=0.3 if script.startswith("sleep") else timeout)

    install("stressapptest", script)
    install("cpu_check", f"cat {RECORDED}/cpu_check_fail.txt >&2; exit 1")
    with pytest.raises(Unable) as caught:
        found(tmp_path, run=run)
    assert caught.value.cause is cause
    assert says in str(caught.value)


def test_what_one_tool_found_is_told_before_the_other_fails(
    tmp_path: Path, install: Installer
) -> None:
    install("stressapptest", "exit 0")
    install("cpu_check", f"cat {RECORDED}/cpu_check_fail.txt >&2; exit 1")
    items = measure(make_context(tmp_path), SHORT)
    assert [f.part_id for f in list_findings([next(items)])] == ["cpu1"]


def test_a_tool_that_was_ended_early_has_told_what_it_found() -> None:
    text = "Hardware Error: miscompare on CPU 3(0x8) at 0x7f: read:0x1\n"
    opinion = read_stressapptest(text)
    assert (opinion.errors, opinion.compared) == (1, "")
    assert opinion.first.startswith("miscompare on CPU 3")


def test_shared_memory_of_a_tool_that_is_killed_goes_with_it(
    tmp_path: Path, install: Installer
) -> None:
    told = tmp_path / "namespace"
    install("stressapptest", f"readlink /proc/self/ns/ipc >{told}")
    with pytest.raises(Unable):
        found(tmp_path)
    ours = str(Path("/proc/self/ns/ipc").readlink())
    is_own = told.read_text().strip() != ours
    assert is_own == (run_tool(["unshare", "--ipc", "cat"], timeout=60).returncode == 0)
