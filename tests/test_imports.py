"""Libraries are imported without what they can do without."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from hpcverify.imports import replace_modules

ABSENT, OTHER = "hpcverify_absent", "hpcverify_other"


def test_a_module_is_replaced_for_the_imports_of_the_block_and_not_after_it() -> None:
    other = ModuleType(OTHER)
    with replace_modules({ABSENT: None, OTHER: other}):
        found = __import__(OTHER)
        with pytest.raises(ImportError):
            __import__(ABSENT)

    assert found is other
    assert {ABSENT, OTHER}.isdisjoint(sys.modules)


def test_what_was_imported_before_stays() -> None:
    with replace_modules({"sys": None}):
        assert __import__("sys") is sys

    assert sys.modules["sys"] is sys


def test_an_import_that_fails_leaves_nothing_replaced() -> None:
    with pytest.raises(ImportError), replace_modules({ABSENT: None}):
        __import__(ABSENT)

    assert ABSENT not in sys.modules
