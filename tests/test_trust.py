"""Who can change what lies at a path, and whose links are followed."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcverify.errors import ConfigError
from hpcverify.trust import (
    refuse_folder_of_others,
    refuse_if_others_can_change,
    refuse_if_others_can_read,
    refuse_link_of_others,
    refuse_tree_others_can_change,
    walk_path,
)
from tests.own_node import let_all_enter

SOMEBODY = 4242
pytestmark = pytest.mark.needs("root")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Make a file two folders deep, all of it root's."""
    path = tmp_path / "etc/hpcverify/site.toml"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.fixture
def as_a_user() -> Iterator[None]:
    os.seteuid(SOMEBODY)
    yield
    os.seteuid(0)


def fault(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        refuse_if_others_can_change(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_only_root_can_change_is_taken(site: Path) -> None:
    refuse_if_others_can_change(site)
    refuse_if_others_can_change(site.with_name("missing.toml"))
    refuse_if_others_can_change(site / "no" / "folder")


@pytest.mark.parametrize("level", [0, 1, 2], ids=["itself", "its folder", "above"])
def test_what_somebody_else_owns_is_refused_wherever_it_is_on_the_way(
    site: Path, level: int
) -> None:
    owned = [site, *site.parents][level]
    os.chown(owned, SOMEBODY, 0)

    assert fault(site).endswith(f"(owner 4242, mode {mode(owned)}): chown 0 {owned}")


@pytest.mark.parametrize("level", [0, 1, 2], ids=["itself", "its folder", "above"])
def test_what_others_can_write_is_refused_wherever_it_is_on_the_way(site: Path, level: int) -> None:
    loose = [site, *site.parents][level]
    loose.chmod(0o777)

    assert fault(site).endswith(f"(owner 0, mode 0777): chmod go-w {loose}")


def mode(path: Path) -> str:
    return f"{path.stat().st_mode & 0o7777:04o}"


USER, GROUP = 2, 8
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


def grant(path: Path, tag: int, who: int, perms: int = 7, mask: int = 7) -> None:
    """Let user or group *who* do *perms*, as setfacl does."""
    os.setxattr(path, ACCESS, make_acl(tag, who, perms, mask))


def make_acl(tag: int, who: int, perms: int, mask: int) -> bytes:
    nobody = 0xFFFFFFFF
    entries = [(1, 7, nobody), (tag, perms, who), (4, 5, nobody), (16, mask, nobody)]
    entries = [*sorted(entries), (32, 5, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.parametrize("level", [0, 1, 2], ids=["itself", "its folder", "above"])
@pytest.mark.parametrize("tag", [USER, GROUP], ids=["user", "group"])
def test_what_an_acl_lets_others_write_is_refused_wherever_it_is_on_the_way(
    site: Path, level: int, tag: int
) -> None:
    granted = [site, *site.parents][level]
    granted.chmod(0o755)
    grant(granted, tag, SOMEBODY)
    assert f"setfacl -b -k {granted} && chmod go-w {granted}" in fault(site)
    os.removexattr(granted, ACCESS)
    granted.chmod(0o755)
    refuse_if_others_can_change(site)


@pytest.mark.parametrize(("who", "perms", "mask"), [(SOMEBODY, 5, 7), (SOMEBODY, 7, 5), (0, 7, 7)])
def test_an_acl_that_lets_nobody_else_write_is_taken(
    site: Path, who: int, perms: int, mask: int
) -> None:
    for path in (site, site.parent):
        os.chown(path, 0, SOMEBODY)  # whose bit of the mode is now of the mask
        grant(path, USER, who, perms, mask)
    refuse_if_others_can_change(site)


def test_an_acl_that_no_kernel_makes_is_refused_in_one_line(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FUSE may answer anything."""
    monkeypatch.setattr(os, "getxattr", lambda *_, **__: b"\2\0\0\0abc")
    assert "has an ACL that makes no sense" in fault(site)


def test_a_folder_is_refused_that_lets_others_write_what_is_made_in_it(site: Path) -> None:
    os.setxattr(site.parent, DEFAULT, make_acl(USER, SOMEBODY, 7, 7))
    assert f"setfacl -b -k {site.parent}" in fault(site)


def test_an_acl_in_a_tree_counts(tmp_path: Path) -> None:
    module = tmp_path / "checks/acme/clock.py"
    module.parent.mkdir(parents=True)
    module.touch()
    refuse_tree_others_can_change(tmp_path / "checks")
    grant(module, USER, SOMEBODY)
    with pytest.raises(ConfigError, match=r"clock\.py can be changed by other users"):
        refuse_tree_others_can_change(tmp_path / "checks")


def test_a_user_keeps_nothing_where_an_acl_lets_somebody_else_write(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    let_all_enter(tmp_path)
    os.chown(tmp_path, SOMEBODY, SOMEBODY)
    grant(tmp_path, USER, 4343)
    request.getfixturevalue("as_a_user")

    with pytest.raises(ConfigError, match="setfacl -b -k"):
        refuse_folder_of_others(tmp_path)


def test_what_a_group_can_write_is_refused_unless_it_is_roots(site: Path) -> None:
    site.chmod(0o664)
    refuse_if_others_can_change(site)
    os.chown(site, 0, SOMEBODY)

    assert "chmod go-w" in fault(site)


def test_in_a_sticky_folder_only_what_is_ours_is_taken(site: Path) -> None:
    site.parent.chmod(0o1777)
    refuse_if_others_can_change(site)
    os.chown(site, SOMEBODY, 0)

    assert f"chown 0 {site}" in fault(site)


def test_a_sticky_folder_is_taken_only_for_what_we_make_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    refuse_if_others_can_change(tmp_path, shared=True)

    assert "chmod go-w" in fault(tmp_path)


def test_what_a_link_leads_to_counts_and_so_does_who_made_it(site: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(site)
    refuse_if_others_can_change(link)
    site.parent.chmod(0o777)
    of_target = fault(link)
    site.parent.chmod(0o755)
    os.chown(link, SOMEBODY, 0, follow_symlinks=False)

    assert str(site.parent) in of_target
    assert f"{link} is a link that user {SOMEBODY} may have created" in fault(link)


def test_links_that_go_in_circles_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    assert "Too many levels of symbolic links" in fault(tmp_path / "a")


@pytest.mark.parametrize("part", ["__pycache__", "__pycache__/x.pyc", "sub", "sub/y.py"])
def test_a_tree_of_which_others_can_change_a_part_is_refused(tmp_path: Path, part: str) -> None:
    for name in ("__pycache__/x.pyc", "sub/y.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    refuse_tree_others_can_change(tmp_path)
    (tmp_path / part).chmod(0o777)

    with pytest.raises(ConfigError, match=f"chmod go-w {tmp_path / part}"):
        refuse_tree_others_can_change(tmp_path)


def test_a_link_in_a_tree_counts_as_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/x.py").touch()
    (tmp_path / "tree/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "tree/up").symlink_to(tmp_path / "tree")
    refuse_tree_others_can_change(tmp_path / "tree")
    (tmp_path / "elsewhere/x.py").chmod(0o666)

    with pytest.raises(ConfigError, match=r"elsewhere/x\.py"):
        refuse_tree_others_can_change(tmp_path / "tree")


def test_a_user_keeps_things_in_a_folder_of_their_own(tmp_path: Path, as_a_user: None) -> None:
    del as_a_user
    refuse_folder_of_others(tmp_path)  # root's
    refuse_folder_of_others(Path("/tmp"), shared=True)  # noqa: S108 - as everybody's is
    refuse_folder_of_others(tmp_path / "missing")

    with pytest.raises(ConfigError, match="chmod go-w /tmp"):
        refuse_folder_of_others(Path("/tmp"))  # noqa: S108 - likewise


def test_a_user_keeps_nothing_in_a_folder_of_somebody_else(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    let_all_enter(tmp_path)
    os.chown(tmp_path, 4343, 0)
    request.getfixturevalue("as_a_user")

    with pytest.raises(ConfigError, match="owner 4343"):
        refuse_folder_of_others(tmp_path)


def follow(path: Path) -> Path:
    with walk_path(path, refuse_link_of_others) as end:
        return end.path


def test_links_of_ours_are_followed_however_they_lead(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "relative").symlink_to("to/../to")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")

    assert follow(tmp_path / "absolute/x.html") == tmp_path / "to/../to/x.html"
    with pytest.raises(FileNotFoundError):
        follow(tmp_path / "none/x.html")


def test_an_absolute_path_is_reached_from_a_folder_that_we_cannot_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)
    request.getfixturevalue("as_a_user")

    assert follow(Path("/etc/hostname")) == Path("/etc/hostname")


@pytest.mark.parametrize("name", ["link", "link/x.html"], ids=["last", "on the way"])
def test_no_link_that_somebody_else_made_is_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "to").mkdir()
    link = tmp_path / "link"
    link.symlink_to("to")
    os.chown(link, SOMEBODY, 0, follow_symlinks=False)

    with pytest.raises(ConfigError, match=f"{link} is a link that user 4242"):
        follow(tmp_path / name)


def test_a_link_of_ours_is_not_followed_where_others_can_have_put_it(tmp_path: Path) -> None:
    link = tmp_path / "open/link"
    link.parent.mkdir()
    link.symlink_to(tmp_path)
    link.parent.chmod(0o1777)
    follow(link)
    os.link(link, tmp_path / "second name", follow_symlinks=False)
    with pytest.raises(ConfigError, match="another user may have created"):
        follow(link)
    (tmp_path / "second name").unlink()
    link.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="another user may have created"):
        follow(link)


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o640), (0, 0o604), (0, 0o610), (SOMEBODY, 0o600)])
def test_a_secret_that_somebody_else_can_read_is_refused_with_the_fix(
    tmp_path: Path, owner: int, mode: int
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    refuse_if_others_can_read(secret, secret.stat())
    os.chown(secret, owner, 0)
    secret.chmod(mode)

    with pytest.raises(ConfigError, match=f"chown 0 {secret} && chmod 600 {secret}"):
        refuse_if_others_can_read(secret, secret.stat())


def test_a_secret_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a regular file"):
        refuse_if_others_can_read(tmp_path, tmp_path.stat())
