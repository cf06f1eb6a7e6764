"""Ranks on several nodes get a secret that only their user can read, or none start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from hpcverify.check import Cause, Unable
from hpcverify.records.collectives import SECRET_VARIABLE
from hpcverify_checks.collectives import secret
from hpcverify_checks.collectives.launch import launch
from hpcverify_checks.collectives.order import LaunchOrder
from hpcverify_checks.collectives.secret import make_secret, open_credential, read_secret
from tests.checks.collectives.launched import SMALL
from tests.waiting import wait_until

NOBODY = 65534


@pytest.fixture(autouse=True)
def _no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Make a folder that other users reach."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def munge(monkeypatch: pytest.MonkeyPatch, open_folder: Path) -> Iterator[Path]:
    """Start a munged of our own, which Slurm's configuration names."""
    socket, key = open_folder / "socket", open_folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    own = [f"--{name}-file={open_folder}/{name}" for name in ("seed", "pid", "log")]
    command = ["munged", "--foreground", "--force", f"--socket={socket}", f"--key-file={key}"]
    with subprocess.Popen([*command, *own], stderr=subprocess.DEVNULL) as daemon:
        wait_until(lambda: socket.exists() or daemon.poll() is not None)
        assert daemon.poll() is None
        scontrol = open_folder / "scontrol"
        told = f"AuthAltTypes = (null)\nAuthInfo                = socket={socket}\n"
        scontrol.write_text(f"#!/bin/sh\ncat <<'END'\n{told}END\n")
        scontrol.chmod(0o755)
        monkeypatch.setenv("PATH", str(open_folder), prepend=":")
        monkeypatch.setattr(secret, "SOCKET", open_folder / "not there")
        try:
            yield socket
        finally:
            daemon.terminate()


@pytest.mark.usefixtures("munge")
def test_every_rank_of_the_user_gets_the_secret_out_of_the_credential() -> None:
    made, credential = make_secret()

    assert made.encode() not in credential
    assert [open_credential(credential) for _ in range(3)] == [made] * 3


@pytest.mark.needs("root")
def test_a_credential_that_another_user_made_is_refused(munge: Path) -> None:
    """It is for us and can be opened, but they know what is in it."""
    forged = subprocess.run(
        ["munge", f"--socket={munge}", "--restrict-uid=0"],
        input=b"a" * 64,
        user=NOBODY,
        capture_output=True,
        check=True,
    )
    assert open_credential(forged.stdout.strip()) == ""


@pytest.mark.needs("root")
def test_another_user_cannot_open_the_credential(munge: Path) -> None:
    made, credential = make_secret()
    opened = subprocess.run(
        ["unmunge", f"--socket={munge}"],
        input=credential,
        user=NOBODY,
        capture_output=True,
        check=False,
    )
    assert opened.returncode != 0
    assert made.encode() not in opened.stdout


@pytest.mark.usefixtures("munge")
@pytest.mark.parametrize("noise", [b"", b"MUNGE:noise:", b"--socket=x", b"\0" * 5000])
def test_what_is_not_a_credential_opens_nothing(noise: bytes) -> None:
    assert open_credential(noise) == ""


def test_a_secret_of_the_environment_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "x" * 32)

    assert read_secret() == "x" * 32
    assert make_secret() == ("x" * 32, b"")


@pytest.mark.parametrize("given", ["x" * 31, "\udcff" * 40], ids=["short", "no text"])
def test_a_secret_that_can_be_guessed_or_is_no_text_is_refused(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, given)
    with pytest.raises(Unable) as refused:
        make_secret()

    assert refused.value.cause is Cause.MISCONFIGURED
    assert f"export {SECRET_VARIABLE}=" in str(refused.value)


@pytest.mark.parametrize("rank", [0, 1])
def test_with_nothing_in_common_ranks_of_several_nodes_do_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: int
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(secret, "SOCKET", tmp_path / "not there")
    own = {"timeout": 1.0, "world": 2, "ranks": ((rank, 0),), "node": "n", "port": 20000}
    order = LaunchOrder(**dict[str, Any](SMALL, **own))
    with pytest.raises(Unable) as refused:
        launch(msgspec.json.encode(order))

    assert f"export {SECRET_VARIABLE}=" in str(refused.value)
