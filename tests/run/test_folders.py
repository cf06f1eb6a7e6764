"""A run's own folders: empty at first, gone afterwards, and nobody else's touched."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from hpcverify.errors import ConfigError, UnusableError
from hpcverify.model import Remedy
from hpcverify.run.folders import make_run_folders, remove, temporary_folder
from tests.fuse import silent_file_system
from tests.waiting import PATIENCE_S

DEEP = 1200  # more than Python recurses
SOMEBODY = 4242
AS_ROOT = pytest.mark.needs("root")


def use(root: Path) -> list[str]:
    """Make a folder in *root* and fill it; return what was told."""
    told: list[str] = []
    with temporary_folder(root, "n1", say=told.append) as folder:
        assert (folder.parent, folder.stat().st_mode & 0o777) == (root, 0o700)
        assert list(folder.iterdir()) == []
        (folder / "sub").mkdir()
        (folder / "sub" / "file").touch()
    return told


def nested(top: Path, levels: int) -> None:
    """Make folders in folders; their path is longer than a path can be."""
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


def test_a_folder_is_gone_afterwards_with_all_that_is_in_it(tmp_path: Path) -> None:
    assert (use(tmp_path / "made/anew"), list((tmp_path / "made/anew").iterdir())) == ([], [])


def test_folders_are_removed_however_deep_they_are(tmp_path: Path) -> None:
    nested(tmp_path / "deep", DEEP)
    remove(tmp_path / "deep")
    left = list(tmp_path.iterdir())
    # Not left to pytest, which takes a recursion for each level.
    subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)

    assert left == []


def test_what_killed_runs_have_left_goes_and_nothing_else(tmp_path: Path) -> None:
    nested(tmp_path / "hpcverify-n1-killed", 3)
    (tmp_path / "hpcverify-n1-file").touch()
    (tmp_path / "hpcverify-n2-other").mkdir()
    assert use(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["hpcverify-n2-other"]


@AS_ROOT
def test_what_is_called_like_ours_and_is_not_is_left_alone_and_told_of_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    theirs = [tmp_path / f"hpcverify-n1-{i}" for i in range(3)]
    for path in theirs:
        path.mkdir()
        (path / "kept").touch()
        os.chown(path, SOMEBODY, 0)
    (told,) = use(tmp_path)

    assert told.startswith(f"{theirs[0]} belongs to user 4242 (and 2 more) and was not removed")
    assert all((path / "kept").exists() for path in theirs)


@AS_ROOT
@pytest.mark.needs("root")
def test_a_scratch_that_hangs_is_named_and_blocks_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with (
        silent_file_system(scratch),
        make_run_folders(tmp_path / "state", str(scratch), "n1", said.append) as folders,
    ):
        problem = folders.scratch_problem
        assert problem is not None
        assert f"directory {scratch} did not respond within 2 s" in problem.reason
        assert problem.remedy is Remedy.INSPECT
        assert said == []
        assert folders.scratch.is_relative_to(folders.shared)


def test_a_scratch_that_is_missing_is_wrongly_configured_and_no_broken_part(tmp_path: Path) -> None:
    scratch = tmp_path / "missing"
    with make_run_folders(tmp_path / "state", str(scratch), "n1", print) as folders:
        problem = folders.scratch_problem

    assert problem is not None
    assert f"{scratch} cannot be used (No such file or directory). Fix: create it" in problem.reason
    assert problem.remedy is Remedy.FIX_CONFIGURATION


def test_a_scratch_that_answers_leaves_no_process(tmp_path: Path) -> None:
    said: list[str] = []
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    with make_run_folders(tmp_path / "state", str(tmp_path), "n1", said.append) as folders:
        assert folders.scratch.parent == tmp_path
    assert said == []
    assert children.read_text() == before


@pytest.mark.needs("root")
def test_a_link_called_like_ours_is_never_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/kept").touch()
    for name, owner in (("ours", 0), ("theirs", SOMEBODY)):
        link = tmp_path / f"root/hpcverify-n1-{name}"
        link.symlink_to(tmp_path / "elsewhere")
        os.chown(link, owner, 0, follow_symlinks=False)
    use(tmp_path / "root")

    left = [path.name for path in (tmp_path / "root").iterdir()]
    assert left == ["hpcverify-n1-theirs"]
    assert (tmp_path / "elsewhere/kept").exists()


@AS_ROOT
@pytest.mark.parametrize(("owner", "mode"), [(SOMEBODY, 0o755), (0, 0o777)])
def test_a_folder_in_which_others_could_rename_ours_is_refused(
    tmp_path: Path, owner: int, mode: int
) -> None:
    os.chown(tmp_path, owner, 0)
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=f"{tmp_path} can be changed by other users"):
        use(tmp_path)


def test_removal_ends_in_time_and_goes_on_the_next_time(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    for i in range(100):
        (top / "sub" / str(i)).touch()
    remove(top, until=time.monotonic() - 1)
    left = len(list((top / "sub").iterdir()))
    remove(top)

    assert left == 100
    assert not top.exists()


def test_links_within_are_removed_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "top/sub").mkdir(parents=True)
    (tmp_path / "top/sub/link").symlink_to(tmp_path / "kept")
    remove(tmp_path / "top")

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept/file").exists()


@pytest.mark.parametrize(
    ("make", "fix"), [(True, "change HPCVERIFY_STATE"), (False, "change scratch in the site")]
)
def test_a_root_that_cannot_be_used_is_named_with_what_would_help(
    tmp_path: Path, *, make: bool, fix: str
) -> None:
    (tmp_path / "file").touch()
    root = tmp_path / "file" / "root"

    with (
        pytest.raises(UnusableError, match=f"{root} cannot be used .Not a.*{fix}"),
        temporary_folder(root, "n1", say=print, make=make),
    ):
        pass


@AS_ROOT
def test_what_is_mounted_under_a_name_like_ours_is_neither_asked_nor_removed(
    tmp_path: Path,
) -> None:
    """In a scratch that all can write to, a user may mount a FUSE that never answers."""
    theirs = tmp_path / "hpcverify-n1-00000000"
    theirs.mkdir()
    left = tmp_path / "hpcverify-n1-11111111"
    left.mkdir()
    made = threading.Event()

    def make() -> None:
        with temporary_folder(tmp_path, "n1", say=print):
            made.set()

    with silent_file_system(theirs):
        thread = threading.Thread(target=make, daemon=True)
        thread.start()
        came_back = made.wait(PATIENCE_S)
    thread.join()
    assert came_back
    assert [path.name for path in tmp_path.iterdir()] == [theirs.name]
