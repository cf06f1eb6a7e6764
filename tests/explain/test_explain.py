"""Each code that a result can have is explained, and each text has a code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcverify.check import ENGINE_FINDING_RULES, Check, matches
from hpcverify.explain import (
    COMMON_PATH,
    Explanation,
    find_explanation,
    find_text_file,
    list_common_explanations,
    read_texts,
)
from hpcverify.fleet.finding_log import OTHER_CODE
from hpcverify.model import Cause, Remedy, Source
from hpcverify.plan.catalog import BUILTIN_PACKAGE, load_checks
from hpcverify.telemetry import cuda_errors
from hpcverify.telemetry.problems import ERROR_STATE_CODE

CHECKS, _ = load_checks((BUILTIN_PACKAGE,))
OUTER_CODES = {
    Source.PEERS: ("outlier",),
    Source.JOBS: ("black_hole", "node_fail", "avoided"),
    Source.FABRIC: ("isolated",),
}
"""The codes of findings that no check makes, by their source."""
SHORTFALL_CODES = ("torch_missing", "torch_broken", "torch_without_platform", ERROR_STATE_CODE)
"""The codes of what keeps a check from running, beside those of CUDA's errors."""
ENGINE_CODES = {
    *ENGINE_FINDING_RULES,
    *cuda_errors.build_finding_rules(),
    *(cause.value for cause in Cause if cause),
    *SHORTFALL_CODES,
    *(code for codes in OUTER_CODES.values() for code in codes),
    OTHER_CODE,
}


def list_codes(check: Check[Any]) -> dict[str, Remedy]:
    """List the codes of *check* with their remedies."""
    limits = {name: rule.remedy or Remedy.NONE for name, rule in check.rules.items()}
    return limits | {code: rule.remedy for code, rule in check.finding_rules.items()}


@pytest.mark.parametrize("name", CHECKS)
def test_every_code_of_a_check_has_a_title_a_meaning_and_a_fix(name: str) -> None:
    for code, remedy in list_codes(CHECKS[name]).items():
        found = find_explanation(name, code)
        assert found is not None, code
        assert found.title, code
        assert found.meaning.endswith("."), code
        assert found.fix or remedy is Remedy.NONE, code


@pytest.mark.parametrize("name", CHECKS)
def test_no_text_of_a_check_is_without_a_code_or_a_parameter(name: str) -> None:
    path = find_text_file(name)
    assert path is not None
    texts, codes = read_texts(path), list_codes(CHECKS[name])

    assert [code for code in texts.codes if not any(matches(c, code) for c in codes)] == []
    assert set(texts.params) == set(CHECKS[name].params.__struct_fields__)
    assert all((texts.group, texts.does, texts.why, texts.load))


def test_every_code_of_the_engine_and_of_other_sources_is_explained() -> None:
    assert [code for code in ENGINE_CODES if find_explanation("", code) is None] == []


def test_no_common_text_is_without_a_code() -> None:
    used = ENGINE_CODES.union(*map(list_codes, CHECKS.values()))
    own = read_texts(COMMON_PATH).codes

    assert [code for code in own if not any(matches(c, code) for c in used)] == []


def test_every_remedy_has_a_step() -> None:
    assert set(read_texts(COMMON_PATH).remedies) == {
        remedy.value for remedy in Remedy if remedy not in (Remedy.NONE, Remedy.FIX_CHECKER)
    }


def test_a_title_continues_the_name_of_a_part() -> None:
    paths = [COMMON_PATH, *(find_text_file(name) for name in CHECKS)]
    rows = [row for path in paths if path for row in read_texts(path).codes.values()]
    assert [
        row.title for row in rows if row.title.endswith(".") or len(row.title) > MAX_TITLE
    ] == []


MAX_TITLE = 60
"""Characters of a title, which stands in one line with the name of a part."""


def test_a_measurement_is_explained_by_the_pattern_of_its_limit() -> None:
    assert find_explanation("gemm", "bf16.sustained") == find_explanation("gemm", "*.sustained")
    assert (
        find_explanation("gpu_memory", "memory_corrupted")
        == (list_common_explanations()["memory_corrupted"])
    )


def test_an_xid_under_our_load_says_so() -> None:
    found = find_explanation("xid", "xid_31_under_load")

    assert found is not None
    assert found.title.startswith("Xid 31: ")
    assert "hpcverify" in found.title


def test_an_unknown_code_has_no_explanation() -> None:
    assert find_explanation("gemm", "no such code") is None


def test_a_check_of_a_site_ships_its_own_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other_checks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "lamp.toml").write_text(
        '[codes.dark]\ntitle = "is dark"\nmeaning = "The lamp is off."\nfix = "switch it on"\n'
    )
    (package / "bad.toml").write_text("[codes.dark]\nname = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    found = find_explanation("lamp", "dark", ("other_checks",))

    assert found == Explanation("is dark", "The lamp is off.", "switch it on")
    assert find_explanation("bad", "dark", ("other_checks",)) is None
    assert find_explanation("bad", "timeout", ("other_checks",)) is not None
