"""Slurm's shorthand for names of nodes."""

from __future__ import annotations

import pytest

from hpcverify.errors import ConfigError
from hpcverify.plan.hostlist import NODE_NAME_PATTERN, expand, fold


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu[08-10],login-1", ["gpu08", "gpu09", "gpu10", "login-1"]),
        ("gpu[1,3]-ib", ["gpu1-ib", "gpu3-ib"]),
        ("n1,n1", ["n1"]),
        ("n[1-2,2]", ["n1", "n2"]),
        ("n[7,2]", ["n7", "n2"]),  # a rank's node is found by its place
        ("r[1-2]n[08-09]-ib", ["r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib"]),
        ("a, b[1, 3]c, d", ["a", "b1c", "b3c", "d"]),
    ],
)
def test_a_list_of_nodes_is_expanded(hostlist: str, names: list[str]) -> None:
    assert expand(hostlist) == names


@pytest.mark.parametrize(
    "hostlist",
    ["", " ", "n[3-1", "n[a]", "n1,,n2", "@racks", "n1 n2", "-w", "ALL", "all", "n1,ALL", "*"],
)
def test_nonsense_is_refused_and_named(hostlist: str) -> None:
    with pytest.raises(ConfigError, match="is not a list of nodes"):
        expand(hostlist)


@pytest.mark.parametrize(
    "hostlist",
    [
        "n[1-99999999]",
        "n[1-99999999999]",
        "n[1 - 99999999]",
        "n[1_0-99_999_999]",
        "r[1-9999]n[1-9999]",
        "n[1-60000],m[1-60000]",
        "n" + "9" * 5000,
        "n[" + "9" * 5000 + "]",
        "n[1-" + "9" * 5000 + "]",
        "n[1-" + "9" * 90 + "]",
        "]" * 99 + "[" * 99_999,
    ],
)
def test_a_list_that_is_too_long_is_refused_in_one_line_before_it_is_expanded(
    hostlist: str,
) -> None:
    with pytest.raises(ConfigError, match=r"is not a list of nodes") as e:
        expand(hostlist)
    assert len(str(e.value)) < 300


@pytest.mark.parametrize("name", ["n1", "gpu08", "r12c3n4", "login-1.cluster", "x_1"])
def test_what_is_folded_is_expanded_to_the_same_nodes(name: str) -> None:
    names = [name, "n2", "n3", "n10", "gpu09", "gpu10", "r12c3n5", "r13c3n4"]
    assert sorted(expand(fold(names))) == sorted(set(names))


@pytest.mark.parametrize("name", ["n1", "gpu-01.cluster", "ALLEGRO", "x_1"])
def test_a_plain_name_is_one(name: str) -> None:
    assert NODE_NAME_PATTERN.fullmatch(name)


@pytest.mark.parametrize("name", ["ALL", "all", "n[1-2]", "n1,n2", "-f", "", "n1\n"])
def test_what_may_be_several_nodes_is_no_name(name: str) -> None:
    assert not NODE_NAME_PATTERN.fullmatch(name)


def test_names_are_written_as_short_as_can_be() -> None:
    assert fold(["n10", "n2", "n3", "x7"]) == "n[2-3,10],x7"
