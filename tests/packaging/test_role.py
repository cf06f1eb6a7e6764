"""What the Ansible role says a second time, held to the code that says it first."""

from __future__ import annotations

import msgspec
import pytest

from hpcverify.slurm import HookSettings
from hpcverify.slurm.hooks import PACKAGED_HOOKS
from hpcverify.slurm.requirements import NOHOLD, Place, Stage, list_hook_requirements
from tests.packaging.machine import ROOT

VARIABLES = ROOT / "packaging/ansible/roles/hpcverify/vars/main.yml"
NEW_SITE = HookSettings(version=(24, 11), conf="/etc/slurm/slurm.conf", scheduler=(NOHOLD,))
"""A site without hooks. SchedulerParameters is a line of the site's own, which no file adds to."""


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (Stage.OBSERVE, "hpcverify_slurm_conf_observe"),
        (Stage.REFUSE, "hpcverify_slurm_conf_refuse"),
    ],
)
def test_the_role_has_the_lines_that_setup_prints_for_a_new_site(stage: Stage, name: str) -> None:
    settings: dict[str, object] = msgspec.yaml.decode(VARIABLES.read_bytes())[name]
    lines = [
        line
        for requirement in list_hook_requirements(NEW_SITE, PACKAGED_HOOKS)
        if requirement.stage is stage
        for line in requirement.list_lines(Place.END)
    ]

    assert lines
    assert [f"{key}={value}" for key, value in settings.items()] == lines
