"""Each code has a title, a meaning and a fix."""

from __future__ import annotations

from hpcverify.explain import find_explanation


def test_an_error_of_cuda_is_explained_for_any_check() -> None:
    found = find_explanation("gemm", "cuda_unknown")

    assert found is not None
    assert "reboot" in found.fix


def test_an_unknown_code_has_no_explanation() -> None:
    assert find_explanation("gemm", "no such code") is None
