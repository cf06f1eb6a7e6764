"""Who may change the spool: a gate file that somebody else can write holds no node."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from hpcverify import gate
from hpcverify.errors import StoreError
from hpcverify.gate import JobGate, read, write
from hpcverify.records.spool import deposit, fetch_gate, take_place
from tests.doubles import a_run
from tests.test_trust import ACCESS, DEFAULT, USER, grant, make_acl

LATER = 99_999_999_999
BAD = JobGate("quarantined", LATER, "GPU 3: lost", ("inventory", "xid"))
SOMEBODY, FLEET_USER = 4242, 4343
root_only = pytest.mark.needs("root")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    write(tmp_path / "spool/gate/n1", BAD)
    (tmp_path / "spool/gate").chmod(0o755)
    return tmp_path / "spool"


def refuse_both(spool: Path, owner: int = 0) -> str:
    """Refuse to fetch from *spool* and to leave a run there, in the same words; return them."""
    state = spool.parent / "state"
    with pytest.raises(StoreError) as fetched:
        fetch_gate(spool, state, "n1", owner)
    with pytest.raises(StoreError) as left:
        deposit(a_run(), spool, owner=owner)
    assert str(fetched.value) == str(left.value)
    assert "\n" not in str(left.value)
    assert not (state / "gate").exists()
    return str(left.value)


def test_a_node_takes_over_the_word_to_it(tmp_path: Path, spool: Path) -> None:
    assert fetch_gate(spool, tmp_path / "state", "n1")
    assert read(tmp_path / "state/gate") == BAD


@pytest.mark.parametrize("node", ["n2", "../gate/n1", "", "."])
def test_without_a_word_to_it_a_node_keeps_what_it_has(
    tmp_path: Path, spool: Path, node: str
) -> None:
    write(tmp_path / "state/gate", JobGate("ok", LATER))

    assert not fetch_gate(spool, tmp_path / "state", node)
    assert read(tmp_path / "state/gate") == JobGate("ok", LATER)


def test_a_stale_word_stays_in_the_spool(tmp_path: Path, spool: Path) -> None:
    write(spool / "gate/n1", JobGate("quarantined", 1))
    assert not fetch_gate(spool, tmp_path / "state", "n1")


def test_a_state_that_cannot_be_written_is_no_error(tmp_path: Path, spool: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    assert not fetch_gate(spool, tmp_path / "state", "n1")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_a_spool_that_all_can_write_to_is_refused(spool: Path, mode: int) -> None:
    spool.chmod(mode)
    assert f"chmod go-w {spool}" in refuse_both(spool)
    assert [path.name for path in spool.iterdir()] == ["gate"]


@root_only
@pytest.mark.parametrize("level", ["spool", "spool's folder"])
def test_a_path_that_somebody_else_owns_is_refused(spool: Path, level: str) -> None:
    os.chown(spool if level == "spool" else spool.parent, SOMEBODY, -1)
    assert f"(owner {SOMEBODY}, " in refuse_both(spool)


@root_only
@pytest.mark.parametrize("last", [True, False], ids=["spool", "above"])
def test_no_folder_is_made_through_a_link_of_somebody_else(tmp_path: Path, *, last: bool) -> None:
    own = tmp_path / "own/deep"
    own.mkdir(parents=True, mode=0o700)
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o1777)
    link = tmp_path / "all/link"
    link.symlink_to(own if last else own.parent)
    os.chown(link, SOMEBODY, -1, follow_symlinks=False)

    spool = link if last else link / "deep"
    assert f"{link} is a link that user {SOMEBODY}" in refuse_both(spool)
    assert [*own.iterdir()] == []


@pytest.mark.parametrize("mode", [0o757, 0o1777])
def test_a_folder_of_gate_files_that_others_may_write_to_is_not_believed(
    tmp_path: Path, spool: Path, mode: int
) -> None:
    (spool / "gate").chmod(mode)
    with pytest.raises(StoreError, match="chmod go-w"):
        fetch_gate(spool, tmp_path / "state", "n1")
    deposit(a_run(), spool)  # which says nothing against the spool itself


@root_only
@pytest.mark.parametrize("name", ["gate", "gate/n1"])
def test_what_an_acl_lets_somebody_else_write_is_not_believed(
    tmp_path: Path, spool: Path, name: str
) -> None:
    grant(spool / name, USER, SOMEBODY, perms=5, mask=5)
    assert fetch_gate(spool, tmp_path / "state", "n1")
    grant(spool / name, USER, SOMEBODY)
    with pytest.raises(StoreError, match="setfacl -b"):
        fetch_gate(spool, tmp_path / "state", "n1")


@root_only
@pytest.mark.parametrize("whole", [True, False], ids=["folder and file", "file"])
def test_a_word_by_another_user_is_not_believed(
    tmp_path: Path, spool: Path, *, whole: bool
) -> None:
    """Also if the folder is theirs too: they made it before the controller did."""
    for path in (spool / "gate/n1", *([spool / "gate"] if whole else [])):
        os.chown(path, SOMEBODY, SOMEBODY)
    with pytest.raises(StoreError, match=f"owner {SOMEBODY}"):
        fetch_gate(spool, tmp_path / "state", "n1")


@root_only
def test_the_user_that_the_site_names_is_believed(tmp_path: Path, spool: Path) -> None:
    for path in (spool, spool / "gate", spool / "gate/n1"):
        os.chown(path, FLEET_USER, FLEET_USER)
    assert "or set user of [fleet] here" in refuse_both(spool)
    os.chown(spool / "gate", SOMEBODY, -1)
    with pytest.raises(StoreError, match=f"chown {FLEET_USER} {spool}/gate"):
        fetch_gate(spool, tmp_path / "state", "n1", FLEET_USER)

    os.chown(spool / "gate", FLEET_USER, -1)
    assert fetch_gate(spool, tmp_path / "state", "n1", FLEET_USER)
    left = deposit(a_run(), spool, owner=FLEET_USER)
    assert left.parent.stat().st_uid == FLEET_USER


@root_only
@pytest.mark.parametrize("attribute", [ACCESS, DEFAULT], ids=["access", "default"])
def test_what_an_acl_lets_the_user_that_the_site_names_write_is_believed(
    tmp_path: Path, spool: Path, attribute: str
) -> None:
    """As below a folder from which all inherit it."""
    for path in (spool.parent, spool, spool / "gate"):
        os.setxattr(path, attribute, make_acl(USER, FLEET_USER, 7, 7))
    assert "setfacl -b -k" in refuse_both(spool, SOMEBODY)
    assert fetch_gate(spool, tmp_path / "state", "n1", FLEET_USER)
    assert deposit(a_run(), spool, owner=FLEET_USER).parent.stat().st_mode & 0o077 == 0


@root_only
def test_a_place_that_is_a_link_changes_nothing_elsewhere(tmp_path: Path, spool: Path) -> None:
    places, other = spool / "gate/.places", tmp_path / "other"
    places.mkdir()
    other.touch()
    os.utime(other, (1, 1))
    (places / ".free-1").symlink_to(other)
    take_place(spool, "n1")
    assert other.stat().st_mtime == 1


def test_no_more_nodes_get_a_place_than_there_are_however_many_ask_at_once(tmp_path: Path) -> None:
    places = tmp_path / gate.GATE_NAME / gate.PLACES_NAME
    places.mkdir(parents=True)
    for number in range(4):
        (places / f"{gate.FREE_PREFIX}{number}").touch()
    nodes = [f"n{i}" for i in range(40)]

    with ThreadPoolExecutor(20) as pool:
        answers = [*pool.map(partial(take_place, tmp_path), nodes)]
    got = [name for name, taken in zip(nodes, answers, strict=True) if taken]

    assert len(got) == 4
    assert sorted(path.name for path in places.iterdir()) == sorted(got)
    assert [take_place(tmp_path, name) for name in (got[0], "n40", "../x", ".free-9")] == [
        *(True, False, False, False)
    ]


def test_without_a_spool_nobody_gets_a_place(tmp_path: Path) -> None:
    assert not take_place(tmp_path, "n1")


def test_in_a_spool_that_others_can_write_to_no_place_counts(spool: Path) -> None:
    places = spool / gate.GATE_NAME / gate.PLACES_NAME
    places.mkdir()
    (places / f"{gate.FREE_PREFIX}1").touch()
    places.chmod(0o1777)

    with pytest.raises(StoreError, match="the spool is not used"):
        take_place(spool, "n1")
