"""The files of a site make one configuration, and each setting knows its file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcverify.check import find_rule
from hpcverify.errors import ConfigError
from hpcverify.model import Verdict
from hpcverify.plan.config import Site, load_site
from hpcverify.plan.suite import Step, Suite, SuiteEntry, make_plan
from tests.test_trust import SOMEBODY, USER, grant

AS_ROOT = pytest.mark.needs("root")


def write_site(folder: Path, main: str | None, **drop_ins: str) -> Path:
    """Write a site file and its drop-ins, by their names without the ending."""
    path = folder / "site.toml"
    if main is not None:
        path.write_text(main)
    for name, text in drop_ins.items():
        (folder / "site.d").mkdir(exist_ok=True)
        (folder / "site.d" / f"{name}.toml").write_text(text)
    return path


def load(folder: Path, main: str | None, **drop_ins: str) -> Site:
    return load_site(write_site(folder, main, **drop_ins))


def plan_gemm(site: Site) -> Step:
    suite = Suite(name="s", summary="", budget=100, check=(SuiteEntry(name="gemm"),))
    (step,) = make_plan(suite, site, node="n17").steps
    return step


def test_drop_ins_come_after_the_site_file_in_the_order_of_their_names(tmp_path: Path) -> None:
    site = load(tmp_path, "scratch = '/0'", b="scratch = '/2'", a="scratch = '/1'")
    assert site.scratch == "/2"
    assert [Path(file.path).name for file in site.files] == ["site.toml", "a.toml", "b.toml"]


def test_tables_merge_by_key_and_each_setting_knows_its_file(tmp_path: Path) -> None:
    site = load(
        tmp_path,
        "[fleet]\nspool = '/s'\nat_once = 3",
        a="[fleet]\nat_once = 5\n[fabric.switches]\nleaf0 = 'n[1-2]'",
        b="[fabric.switches]\nleaf1 = 'n[3-4]'",
    )

    assert (site.fleet.spool, site.fleet.at_once) == ("/s", 5)
    assert site.fabric.switches == {"leaf0": "n[1-2]", "leaf1": "n[3-4]"}
    places = [("fleet", "spool"), ("fleet", "at_once"), ("fabric", "switches", "leaf1")]
    names = [Path(site.find_file(*place)).name for place in places]
    assert names == ["site.toml", "a.toml", "b.toml"]
    assert Path(site.find_file("fleet", "qos")).name == "site.toml"


def test_a_list_of_values_is_one_setting_and_the_last_file_decides_it(tmp_path: Path) -> None:
    site = load(
        tmp_path, "[quarantine]\nenforce = ['xid']", a="[quarantine]\nenforce = ['ecc', 'nic']"
    )
    assert site.quarantine.enforce == ("ecc", "nic")


def test_lists_of_tables_add_up_and_a_later_files_come_first(tmp_path: Path) -> None:
    """The first of [[peers]] that fits counts: so that is of the strongest file."""
    site = load(
        tmp_path,
        "[[peers]]\ncheck = 'gemm'\nfloor = 0.1",
        a="[[peers]]\nfloor = 0.2\n[[peers]]\nfloor = 0.3",
        b="[[params.host.expect]]\nmodules = ['x']",
        c="[[params.host.expect]]\nmodules = ['y']",
    )

    assert [floor.floor for floor in site.peers] == [0.2, 0.3, 0.1]
    assert site.params["host"]["expect"] == [{"modules": ["y"]}, {"modules": ["x"]}]
    names = [Path(site.find_file("peers", index)).name for index in range(3)]
    assert names == ["a.toml", "a.toml", "site.toml"]


def test_of_two_host_lists_for_the_bmcs_that_of_the_later_file_is_read_last(tmp_path: Path) -> None:
    site = load(
        tmp_path,
        "[bmc.addresses]\n'n[1-3]' = 'b[1-3]'\nn2 = 'c2'",
        a="[bmc.addresses]\n'n[1-3]' = 'd[1-3]'",
    )

    assert list(site.bmc.addresses.items()) == [("n2", "c2"), ("n[1-3]", "d[1-3]")]


def test_a_limit_of_a_later_file_is_stronger_and_inherits_what_it_leaves_out(
    tmp_path: Path,
) -> None:
    site = load(
        tmp_path,
        "[limits.gemm]\n'fp32.sustained' = {low = 1, otherwise = 'warn', unit = 'GFLOP/s'}",
        a="[limits.gemm]\n'fp32.sus*' = {low = 3, unit = 'GFLOP/s'}",
    )
    step = plan_gemm(site)

    assert [(o.metric, o.low, Path(o.source).name) for o in step.overrides] == [
        ("fp32.sus*", 3, "a.toml"),
        ("fp32.sustained", 1, "site.toml"),
    ]
    hit = find_rule(step.check.rules, step.overrides, "fp32.sustained")
    assert hit is not None
    assert (hit[1].low, hit[1].otherwise) == (3, Verdict.WARN)


def test_limits_of_other_parts_in_other_files_all_count(tmp_path: Path) -> None:
    site = load(
        tmp_path,
        "[limits.gemm]\n'fp32.sustained' = {low = 1, part = 'GPU 0', unit = 'GFLOP/s'}",
        a="[limits.gemm]\n'fp32.sustained' = [{low = 2, part = 'GPU 1', unit = 'GFLOP/s'}]",
    )

    assert {(o.part, o.low) for o in plan_gemm(site).overrides} == {("GPU 0", 1), ("GPU 1", 2)}


def test_drop_ins_need_no_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCVERIFY_CONFIG", raising=False)
    assert load(tmp_path, None, a="scratch = '/1'").scratch == "/1"


def test_a_file_that_is_named_has_the_drop_ins_of_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_site(tmp_path, "", a="scratch = '/of-site'")
    other = tmp_path / "trial.toml"
    other.write_text("")
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(other))
    assert load_site().scratch == ""

    (tmp_path / "trial.d").mkdir()
    (tmp_path / "trial.d/a.toml").write_text("scratch = '/of-trial'")
    assert load_site().scratch == "/of-trial"


def test_files_of_editors_and_package_managers_are_left_out(tmp_path: Path) -> None:
    path = write_site(tmp_path, "", a="scratch = '/1'")
    for name in (".b.toml", "b.toml~", "b.toml.rpmnew", "README"):
        (path.parent / "site.d" / name).write_text("not TOML")
    assert load_site(path).scratch == "/1"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("scratch = = 3", "not TOML"),
        ("scratch = 3", "$.scratch"),
        ("scrach = '/x'", "did you mean scratch?"),
        ("path = '/x'", "unknown field `path`"),
        ("[fleet]\nfresh_hours = nan", "must be a finite number"),
    ],
)
def test_a_damaged_drop_in_is_one_line_with_its_file(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "", a="scratch = '/1'", b=text)
    assert str(caught.value).startswith(f"{tmp_path}/site.d/b.toml: ")
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[limits.gem]\nx = {low = 1}", "limits: no check is called 'gem'"),
        ("[params.gemm]\nsize = 'x'", "params.gemm: "),
        ("[limits.gemm]\nfp23 = {low = 1}", "limits.gemm: no measurement is called"),
        ("check_packages = ['no_such_package']", "check package 'no_such_package'"),
    ],
)
def test_a_mistake_that_the_plan_finds_names_its_drop_in(
    tmp_path: Path, text: str, place: str
) -> None:
    site = load(tmp_path, "[limits.gemm]\n'fp32.sustained' = {low = 1}", a=text)
    with pytest.raises(ConfigError) as caught:
        plan_gemm(site)
    assert str(caught.value).startswith(f"{tmp_path}/site.d/a.toml: {place}")


def test_a_name_that_no_document_could_hold_is_refused(tmp_path: Path) -> None:
    path = write_site(tmp_path, "", a="")
    (path.parent / "site.d" / os.fsdecode(b"\xff.toml")).write_text("")
    with pytest.raises(ConfigError, match="is not printable"):
        load_site(path)


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    path = write_site(tmp_path, "", a="")
    (path.parent / "site.d/b.toml").symlink_to(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"site.d/b.toml does not exist"):
        load_site(path)


def test_what_is_no_file_is_named_and_no_hook_waits_for_it(tmp_path: Path) -> None:
    path = write_site(tmp_path, "", a="")
    odd = path.parent / "site.d/b.toml"

    odd.mkdir()
    with pytest.raises(ConfigError, match=r"site.d/b.toml cannot be read"):
        load_site(path)
    odd.rmdir()
    os.mkfifo(odd)
    with pytest.raises(ConfigError, match=r"site.d/b.toml is not a regular file"):
        load_site(path)
    odd.unlink()
    odd.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"site.d/b.toml exceeds 4 MiB"):
        load_site(path)


@pytest.mark.parametrize("text", ["x = " + "[" * 9999, ".".join("x" * 9999) + " = 1"])
def test_values_that_are_nested_too_deeply_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"b\.toml: its (values|tables) are nested too deeply"):
        load(tmp_path, "", b=text)


def test_a_number_of_thousands_of_digits_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"b\.toml: not TOML"):
        load(tmp_path, "", b="[fleet]\nat_once = " + "9" * 9999)


@pytest.mark.parametrize("name", ["site.toml", "site.d"])
def test_settings_that_a_link_no_longer_reaches_are_not_taken_as_none(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).symlink_to(tmp_path / "not-mounted")
    with pytest.raises(ConfigError, match=name):
        load_site(tmp_path / "site.toml")


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    path = write_site(tmp_path, "")
    (tmp_path / "site.d").write_text("[fleet]")
    with pytest.raises(ConfigError, match=r"site\.d cannot be read: Not a directory"):
        load_site(path)


@AS_ROOT
@pytest.mark.parametrize("loose", ["site.d", "site.d/a.toml"])
def test_root_refuses_drop_ins_that_others_can_change(tmp_path: Path, loose: str) -> None:
    path = write_site(tmp_path, "", a="")
    (tmp_path / loose).chmod(0o777)
    with pytest.raises(ConfigError, match=f"chmod go-w {tmp_path}/{loose}$"):
        load_site(path)

    (tmp_path / loose).chmod(0o755)
    load_site(path)
    os.chown(tmp_path / loose, 4242, 0)
    with pytest.raises(ConfigError, match=f"chown 0 {tmp_path}/{loose}$"):
        load_site(path)


@AS_ROOT
@pytest.mark.parametrize("loose", ["site.d", "site.d/a.toml"])
def test_root_refuses_drop_ins_that_an_acl_lets_others_change(tmp_path: Path, loose: str) -> None:
    path = write_site(tmp_path, "", a="")
    grant(tmp_path / loose, USER, SOMEBODY, 6)
    with pytest.raises(ConfigError, match="setfacl -b"):
        load_site(path)
