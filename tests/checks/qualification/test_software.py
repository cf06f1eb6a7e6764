"""Versions and wiring are told as findings that judge nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hpcverify.check import Finding, Params, Skip, Verdict
from hpcverify.model import Inventory, Part
from hpcverify.testing import make_context
from hpcverify_checks.qualification.software import CHECK, find_version, measure

NODE = Inventory(parts=(Part("gpu", "GPU-0", "GPU 0", {"driver": "580.95"}),))


def find(tmp_path: Path) -> dict[str, Finding]:
    found = list(measure(make_context(tmp_path, inventory=NODE), Params()))
    return {item.code: item for item in found if isinstance(item, Finding)}


def test_the_version_of_torch_is_told(tmp_path: Path) -> None:
    assert find(tmp_path)["versions"].evidence["torch"] == torch.__version__
    assert {rule.verdict for rule in CHECK.finding_rules.values()} == {Verdict.PASS}


def test_the_wiring_is_told_without_the_underlining_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '\\t\\033[4mGPU0\\033[0m\\nGPU0\\t X\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    assert find(tmp_path)["topology"].evidence["topology"] == "\tGPU0\nGPU0\t X"


def test_without_a_gpu_it_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(Skip):
        list(measure(make_context(tmp_path), Params()))


def test_a_package_that_is_missing_has_no_version() -> None:
    assert find_version("a-package-that-nobody-has-made") == ""
    assert find_version("torch")
