"""``hpcverify setup slurm --write``: what is ours is put in place whole, once, by who may."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from hpcverify.commands.setup import is_on_root
from hpcverify.errors import ConfigError, StoreError
from hpcverify.fleet.own_files import (
    SPOOL_MODE,
    list_own_requirements,
    make_spool,
    put_in_place,
)
from hpcverify.plan.config import Fleet, Site, load_site
from hpcverify.slurm.hooks import find_slurm_files, parse_hook_settings
from hpcverify.slurm.requirements import Place

AS_ROOT = pytest.mark.needs("root")
USER = "root"
NOBODY, STRANGER = 65534, 4242


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a site file that says nothing."""
    path = tmp_path / "etc/site.toml"
    path.parent.mkdir()
    path.write_text("")
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(path))
    monkeypatch.setenv("HPCVERIFY_STATE", str(tmp_path / "state"))
    return path


def wanted(config: Path) -> Fleet:
    return Fleet(spool=str(config.parents[1] / "spool"))


def list_missing(site: Site, fleet: Fleet) -> set[str]:
    return {item.subject for item in list_own_requirements(site, fleet) if not item.is_met}


@AS_ROOT
def test_what_is_ours_is_put_in_place_and_then_nothing_is_missing(config: Path) -> None:
    fleet = wanted(config)
    assert list_missing(load_site(), fleet) == {"configuration", "spool", "hooks"}
    made = [*put_in_place(load_site(), fleet)]

    assert made == [
        fleet.spool,
        str(config.with_name("site.d") / "50-slurm.toml"),
        str(config.with_name("hooks.conf")),
    ]
    assert load_site().fleet == fleet
    assert config.read_text() == ""
    assert list_missing(load_site(), fleet) == set()
    found = Path(fleet.spool).stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o755)
    assert [*put_in_place(load_site(), fleet)] == []


@AS_ROOT
def test_the_settings_of_the_hooks_are_the_file_that_ships_with_the_values_of_this_host(
    config: Path,
) -> None:
    [*_] = put_in_place(load_site(), wanted(config))
    text = config.with_name("hooks.conf").read_text()
    shipped = (find_slurm_files() / "hooks.conf").read_text()

    settings = parse_hook_settings(text)
    assert settings.keys() == parse_hook_settings(shipped).keys()
    assert settings["HPCVERIFY_SPOOL"] == wanted(config).spool
    assert settings["HPCVERIFY_STATE"] == os.environ["HPCVERIFY_STATE"]
    assert os.access(settings["HPCVERIFY"], os.X_OK)
    assert settings["HPCVERIFY_USERS"] == "0"
    assert [x for x in text.splitlines() if x[:1] == "#"] == [
        x for x in shipped.splitlines() if x[:1] == "#"
    ]


@AS_ROOT
def test_hooks_that_would_refuse_our_own_jobs_are_named(config: Path) -> None:
    fleet = Fleet(spool=wanted(config).spool, user="nobody")
    [*_] = put_in_place(load_site(), wanted(config))
    named = {item.subject: item.state for item in list_own_requirements(load_site(), fleet)}
    assert "HPCVERIFY_USERS lacks 65534" in named["hooks"]


@AS_ROOT
def test_a_spool_that_a_kill_left_half_made_is_completed_and_one_in_use_is_not_touched(
    config: Path,
) -> None:
    fleet = Fleet(spool=wanted(config).spool, user="nobody")
    spool = Path(fleet.spool)
    spool.mkdir(mode=0o700)
    [*_] = put_in_place(load_site(), fleet)
    assert (spool.stat().st_uid, stat.S_IMODE(spool.stat().st_mode)) == (NOBODY, 0o755)

    (spool / "n1").mkdir()
    spool.chmod(0o777)
    assert fleet.spool not in [*put_in_place(load_site(), fleet)]
    assert stat.S_IMODE(spool.stat().st_mode) == 0o777
    assert list_missing(load_site(), fleet) == {"spool"}


@AS_ROOT
@pytest.mark.parametrize("last", [True, False], ids=["spool", "above"])
def test_no_link_of_somebody_else_is_followed_and_none_is_in_a_printed_line(
    config: Path, *, last: bool
) -> None:
    roots, shared = config.parents[1] / "roots", config.parents[1] / "shared"
    (roots / "spool").mkdir(parents=True, mode=0o700)
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "link"
    link.symlink_to(roots / "spool" if last else roots)
    os.chown(link, STRANGER, -1, follow_symlinks=False)
    fleet = Fleet(spool=str(link if last else link / "spool"), user="nobody")

    [item] = [i for i in list_own_requirements(load_site(), fleet) if i.subject == "spool"]
    assert item.instructions == ()
    assert f"{link} is a link that user {STRANGER}" in item.fix
    assert fleet.spool not in [*put_in_place(load_site(), fleet)]
    with pytest.raises(ConfigError, match="is a link that user"):
        make_spool(Path(fleet.spool), NOBODY)  # as if it was put there in the meantime
    found = (roots / "spool").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o700)
    assert link.lstat().st_uid == STRANGER


@AS_ROOT
def test_a_folder_that_somebody_else_has_prepared_is_not_taken_over(config: Path) -> None:
    fleet = Fleet(spool=wanted(config).spool, user="nobody")
    spool = Path(fleet.spool)
    spool.mkdir()
    os.chown(spool, STRANGER, -1)
    [item] = [i for i in list_own_requirements(load_site(), fleet) if i.subject == "spool"]
    assert (item.instructions, "chown" in item.fix) == ((), False)
    assert f"if user {STRANGER} acts on the fleet, set user of [fleet]" in item.fix
    with pytest.raises(ConfigError, match=f"user {STRANGER} has just made it"):
        make_spool(spool, NOBODY)
    assert spool.stat().st_uid == STRANGER

    os.chown(spool, 0, -1)
    (spool / "something").touch()
    with pytest.raises(ConfigError, match="is not taken over"):
        make_spool(spool, NOBODY)


@AS_ROOT
@pytest.mark.parametrize("name", ["site.d/50-slurm.toml", "hooks.conf"])
def test_on_a_full_disk_no_part_of_a_file_is_left(config: Path, name: str) -> None:
    folder = config.parent if name == "hooks.conf" else config.with_name("site.d")
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=0755", "none", folder], check=True)
    try:
        if name == "hooks.conf":
            config.write_text(f'[fleet]\nspool = "{wanted(config).spool}"\n')
        else:
            (folder / "filler").write_text("x")
        with pytest.raises(StoreError, match=rf"{name} cannot be written: No space left"):
            [*_] = put_in_place(load_site(), wanted(config))
        assert not (config.parent / name).exists()
        assert list_missing(load_site(), wanted(config)) >= {"hooks"}
    finally:
        subprocess.run(["umount", folder], check=True)


@AS_ROOT
@pytest.mark.parametrize("mode", [None, 0o777], ids=["missing", "of a wrong mode"])
def test_the_printed_line_makes_the_spool_that_write_makes(config: Path, mode: int | None) -> None:
    fleet = Fleet(spool=f"{config.parents[1]}/a spool")
    spool = Path(fleet.spool)
    if mode is not None:
        spool.mkdir()
        spool.chmod(mode)
    [item] = [i for i in list_own_requirements(load_site(), fleet) if i.subject == "spool"]

    subprocess.run(["sh", "-c", *item.list_lines(Place.OURS)], check=True)

    assert "spool" not in list_missing(load_site(), fleet)
    assert stat.S_IMODE(spool.stat().st_mode) == SPOOL_MODE


@AS_ROOT
def test_a_spool_below_a_folder_that_is_missing_is_not_made(config: Path) -> None:
    fleet = Fleet(spool=str(config.parents[1] / "not/mounted"))
    [item] = [i for i in list_own_requirements(load_site(), fleet) if i.subject == "spool"]
    assert subprocess.run(["sh", "-c", *item.list_lines(Place.OURS)], check=False).returncode != 0
    assert not Path(fleet.spool).parent.exists()

    message = r"cannot be made: \S+ does not exist: mount .* mkdir -p /\S+"
    with pytest.raises(ConfigError, match=message):
        [*_] = put_in_place(load_site(), fleet)


def test_a_drop_in_of_that_name_with_other_settings_is_left_as_it_is(config: Path) -> None:
    path = config.with_name("site.d") / "50-slurm.toml"
    path.parent.mkdir()
    path.write_text("[fleet]\nat_once = 3\n")

    requirements = list_own_requirements(load_site(), wanted(config))
    item = next(item for item in requirements if item.subject == "configuration")
    assert not item.instructions
    assert str(path) in item.fix
    assert "spool = " in item.state


def test_a_spool_that_no_other_host_sees_is_known_by_its_file_system(tmp_path: Path) -> None:
    assert is_on_root(Path("/usr/.."))
    assert not is_on_root(Path("/proc/self"))
    assert not is_on_root(tmp_path / "none")


def test_without_a_spool_there_is_one_thing_to_choose(config: Path) -> None:
    assert config.exists()
    (item,) = list_own_requirements(load_site(), Fleet())
    assert (item.subject, item.is_met) == ("spool", False)
    assert "--spool" in item.fix
