"""Files of a site: what is wrong in one is one line that names place and fix."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from hpcverify.check import Setting
from hpcverify.errors import ConfigError
from hpcverify.plan.config import Site, load_site, read_toml, site_path, state_dir


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(text)
    return path


def fault(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_toml(written(tmp_path, text), Site)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_file_every_default_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCVERIFY_CONFIG", raising=False)
    assert load_site(Path("/nonexistent/site.toml")) == Site()


def test_a_file_that_was_named_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match=r"none\.toml \(HPCVERIFY_CONFIG\) does not exist"):
        load_site()


def test_an_empty_variable_names_no_site_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCVERIFY_CONFIG", "")
    assert site_path() == Path("/etc/hpcverify/site.toml")


def test_a_folder_in_the_place_of_the_site_file_is_named_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{tmp_path} cannot be read: Is a directory$"):
        load_site(tmp_path)


def test_limits_are_read_as_they_stand(tmp_path: Path) -> None:
    text = '[limits.gemm]\n"fp32.sustained" = {low = 1, unit = "TFLOP/s"}'
    site = read_toml(written(tmp_path, text), Site)
    assert site.limits["gemm"]["fp32.sustained"] == Setting(low=1, unit="TFLOP/s")


def test_an_unknown_key_names_its_path_and_what_was_meant(tmp_path: Path) -> None:
    text = '[limits.gemm]\n"fp32.sustained" = {lwo = 1}'
    told = fault(tmp_path, text)
    assert "site.toml" in told
    assert "`$.limits[...][...]`" in told
    assert told.endswith("did you mean low?")


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ('[quarantine]\nbackend = "nhc"', "slurm, command"),
        ('[quarantine]\ndrain_errors = ["mis"]', "busy, checker, crashed"),
        ('[limits.gemm]\nx = {remedy = "mis"}', "none, rerun, fix_checker"),
    ],
)
def test_a_word_that_is_none_of_those_known_is_told_which_are(
    tmp_path: Path, text: str, known: str
) -> None:
    assert f"; known: {known}" in fault(tmp_path, text)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_is_refused_wherever_it_is(tmp_path: Path, value: str) -> None:
    told = fault(tmp_path, f"[limits.gemm]\nx = {{low = {value}}}")
    assert told.endswith(f"limits.gemm.x.low must be a finite number, not {value}")


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("[fleet]\ngate_hours = 1e300", "fleet.gate_hours must be <= 876000"),
        ("[fleet]\ndeadline_hours = 1e9", "fleet.deadline_hours must be <= 876000"),
        (f"[fleet]\nkeep_runs = {10**30}", "fleet.keep_runs must be <= 100000"),
        ("[history]\nkeep_nights = 99999999999", "history.keep_nights must be <= 36500"),
        ("[events]\nkeep_days = 1e300", "events.keep_days must be <= 36500"),
        ("[fabric]\nperiod_days = 1e300", "fabric.period_days must be <= 36500"),
    ],
)
def test_a_time_or_a_count_beyond_all_reason_is_refused(
    tmp_path: Path, text: str, most: str
) -> None:
    assert fault(tmp_path, text).endswith(most)


def test_a_wrong_type_names_its_path(tmp_path: Path) -> None:
    assert "$.scratch" in fault(tmp_path, "scratch = 3")


def test_a_syntax_error_names_line_and_column(tmp_path: Path) -> None:
    assert "line 1, column" in fault(tmp_path, "scratch = = 3")


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(path, Site)


@pytest.mark.needs("root")
def test_root_refuses_a_file_that_others_can_write(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="chmod go-w"):
        load_site(path)


@pytest.mark.needs("root")
def test_root_refuses_a_file_whose_folders_others_can_change(tmp_path: Path) -> None:
    path = tmp_path / "etc/hpcverify/site.toml"
    path.parent.mkdir(parents=True)
    path.touch()
    load_site(path)
    os.chown(tmp_path / "etc", 4242, 0)

    with pytest.raises(ConfigError, match=f"chown 0 {tmp_path}/etc$"):
        load_site(path)


@pytest.mark.needs("root")
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o1777, 0), (0o755, 4242)])
def test_root_refuses_a_state_directory_that_others_can_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int
) -> None:
    monkeypatch.setenv("HPCVERIFY_STATE", str(tmp_path))
    tmp_path.chmod(mode)
    os.chown(tmp_path, owner, 0)
    with pytest.raises(ConfigError, match="can be changed by other users"):
        state_dir()


def test_a_user_without_a_name_and_a_home_has_to_name_the_state_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container that runs with any uid."""

    def know_nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "HPCVERIFY_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", know_nobody)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ConfigError, match=r"user 4242 .* set HPCVERIFY_STATE"):
        state_dir()


def test_the_state_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCVERIFY_STATE", "/somewhere")
    assert state_dir() == Path("/somewhere")
