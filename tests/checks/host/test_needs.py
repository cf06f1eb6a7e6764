"""What a site needs is read from its file; a mistake in it is one line with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.errors import ConfigError
from hpcverify.plan.config import load_site
from hpcverify.plan.suite import load_suite, make_plan
from hpcverify.testing import list_codes
from hpcverify_checks.host.needs import Expectation, HostParams, MountNeed, fits, names_node
from tests.checks.host.nodes import a_node, look


@pytest.mark.parametrize(
    ("nodes", "names", "others"),
    [
        ("*", ["n1"], []),
        ("n[01-12,20]", ["n01", "n12", "n20"], ["n1", "n13", "n001", "m01", "n01x"]),
        ("n[8-12]", ["n8", "n12"], ["n08", "n13"]),
        ("r[1-2]n[01-04]-ib,login*", ["r2n04-ib", "login", "login7"], ["r3n01-ib", "r1n01"]),
        ("/^s(has|gpu)/", ["shas1", "sgpu0801"], ["ssky", "xshas"]),
        ("!gpu*", ["n1"], ["gpu1"]),
        ("n.1", ["n.1"], ["nx1"]),
        ("n[a-b]", [], ["na", "n1"]),
    ],
)
def test_a_node_is_named_by_host_list_glob_or_regex(
    nodes: str, names: list[str], others: list[str]
) -> None:
    assert [n for n in (*names, *others) if names_node(nodes, n)] == names


@pytest.mark.parametrize(
    ("text", "pattern", "is_fit"),
    [
        ("nfs4", "nfs*", True),
        ("nfs4", "!nfs*", False),
        ("a/b", "/b/", True),
        ("xfs", "ext4", False),
        ("[x]", "[x]", True),
    ],
)
def test_a_pattern_is_a_glob_a_regex_or_neither(text: str, pattern: str, is_fit: bool) -> None:  # noqa: FBT001
    assert fits(text, pattern) is is_fit


def test_an_expectation_holds_for_the_nodes_that_it_names_only(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    there = Expectation(nodes="n[1-4]", mounts=(MountNeed(path="/none"),))
    elsewhere = Expectation(nodes="gpu*", mounts=(MountNeed(path="/none"),))

    assert list_codes(look(tmp_path, node, there)) == ["mount_missing"]
    assert list_codes(look(tmp_path, node, elsewhere)) == []


def planned(tmp_path: Path, text: str) -> HostParams:
    path = tmp_path / "site.toml"
    path.write_text(text)
    plan = make_plan(load_suite("prolog"), load_site(path))
    params = next(step.params for step in plan.steps if step.name == "host")
    assert isinstance(params, HostParams)
    return params


def test_the_site_file_goes_before_the_suite_and_keeps_the_rest(tmp_path: Path) -> None:
    plain = planned(tmp_path, "")
    given = planned(
        tmp_path,
        '[params.host]\ndeadline = 5\n[[params.host.expect]]\nnodes = "n1"\nservices = ["munge"]\n',
    )
    other = planned(tmp_path, "[params.host]\nsmartctl = true\n")

    assert (plain.deadline, plain.smartctl, plain.expect) == (2, False, ())
    assert (given.deadline, given.smartctl) == (5, False)
    assert given.expect == (Expectation(nodes="n1", services=("munge",)),)
    assert other.smartctl is True


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[params.hst]", "did you mean host"),
        ("[params.host]\ndedline = 5", "did you mean deadline"),
        ("[params.host]\ndeadline = -1", "must be > 0"),
        ("[[params.host.expect]]\nservice = ['x']", "did you mean services"),
        ("[[params.host.expect]]\nmounts = [{ path = '/', typ = 'x' }]", "did you mean type"),
        ("[[params.host.expect]]\nmounts = [{ path = '/', type = '/(/' }]", "regular expression"),
        ("[[params.host.expect]]\nnodes = '/(/'", "regular expression"),
        ("[[params.host.expect]]\nfiles = [{ path = '/', mode = 'rwx' }]", "mode"),
        ("[[params.host.expect]]\nnodes = '/x'", "a regular expression ends in /"),
        ("[[params.host.expect]]\nnodes = ''", "has an empty name"),
        ("[[params.host.expect]]\nnodes = 'n1,'", "has an empty name"),
        ("[[params.host.expect]]\nnodes = 'n[1-'", "a bracket is left open"),
        ("[[params.host.expect]]\nnodes = '!n[12-1]'", "'12-1' is not a range"),
        ("[[params.host.expect]]\nnodes = 'n[a-b]'", "'a-b' is not a range"),
        ("[[params.host.expect]]\nnodes = 'ALL'", "all nodes are '*'"),
        (f"[[params.host.expect]]\nnodes = 'n[1-{'9' * 5000}]'", "is not a range"),
        ("[[params.host.expect]]\nnodes = 'n[]'", "'' is not a range"),
        ("[[params.host.expect]]\nfiles = [{ path = 'etc/x' }]", "files[0].path"),
        ("[[params.host.expect]]\nspace = [{ path = 'tmp' }]", "space[0].path"),
        ("[[params.host.expect]]\nhugepages = { 2M = 1 }", "kB"),
        ("[[params.host.expect]]\nbounds = { cores = {} }", "needs low, high or both"),
        ("[[params.host.expect]]\nbounds = { cores = { low = 3, high = 2 } }", "is above"),
        ("[[params.host.expect]]\nbounds = { cores = { min = 3 } }", "; known: low, high"),
        (
            "[[params.host.expect]]\nbounds = { 'processes.share' = { high = 90 } }",
            "(10 % is 0.1), not 90",
        ),
        (
            "[[params.host.expect]]\nspace = [{ path = '/', free_share = { low = 10 } }]",
            "(10 % is 0.1), not 10",
        ),
        ("[params.host]\nservices = ['x']", "; known: expect, deadline, smartctl"),
        ("[[params.host.expect]]\nbounds = { coers = { low = 1 } }", "known: sockets, cores"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_place_and_fix(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=r"site\.toml: params") as caught:
        planned(tmp_path, text)

    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
