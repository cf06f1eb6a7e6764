"""The folder for the documents of an isolation is our own, or nothing is tested."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hpcverify.errors import StoreError
from hpcverify.isolation.group_tests import GroupPurpose, GroupTest
from hpcverify.isolation.runner import OUTBOX_NAME, GroupJobSettings, build_job_spec
from hpcverify.records.collectives import SECRET_VARIABLE
from hpcverify.slurm.submit import build_script, list_options
from tests.isolation.paper import make_paper
from tests.isolation.stand_in import SimulatedCluster

NOBODY = 65534


def isolate(folder: Path) -> object:
    return make_paper(folder, 4, SimulatedCluster()).run()


def premake(folder: Path) -> Path:
    """Make the folder before us, in a spool that all can write to."""
    spool = folder / "spool"
    spool.mkdir()
    spool.chmod(0o1777)
    return spool / OUTBOX_NAME


@pytest.mark.needs("root")
def test_a_folder_that_another_user_made_is_refused(tmp_path: Path) -> None:
    outbox = premake(tmp_path)
    outbox.mkdir(mode=0o777)
    os.chown(outbox, NOBODY, -1)
    with pytest.raises(StoreError, match=f"owner {NOBODY}"):
        isolate(tmp_path)


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    outbox = premake(tmp_path)
    outbox.mkdir()
    outbox.chmod(0o770)
    with pytest.raises(StoreError, match="mode 0770"):
        isolate(tmp_path)


def test_a_link_in_its_place_is_refused_and_not_followed(tmp_path: Path) -> None:
    outbox, target = premake(tmp_path), tmp_path / "target"
    target.mkdir()
    outbox.symlink_to(target)
    with pytest.raises(StoreError, match="was created by another program"):
        isolate(tmp_path)
    assert list(target.iterdir()) == []


def test_a_folder_of_our_own_that_is_there_is_used(tmp_path: Path) -> None:
    premake(tmp_path).mkdir(mode=0o700)
    assert isolate(tmp_path)


def test_each_job_has_a_secret_of_its_own_in_its_script_alone() -> None:
    test = GroupTest(purpose=GroupPurpose.PAIR, members=("n1", "n2"))
    tests, settings = [(test, Path("/s/a"))], GroupJobSettings(partition="p")
    specs = [
        build_job_spec("a-job", ("n1", "n2"), tests, settings, gpus=0, start_within=1)
        for _ in range(2)
    ]
    found = [
        re.findall(
            rf"^export {SECRET_VARIABLE}=([0-9a-f]{{64}})$", build_script(spec), re.MULTILINE
        )
        for spec in specs
    ]

    assert [len(secrets) for secrets in found] == [1, 1]
    assert found[0] != found[1]
    assert not any(found[0][0] in option for option in list_options(specs[0]))
    assert not any(found[0][0] in word for step in specs[0].steps for word in step.arguments)
