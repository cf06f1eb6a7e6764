"""The images of hpcverify, on a Debian made here in place of one from a registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path

import pytest

from hpcverify.model import Run, Verdict
from hpcverify.records import documents
from tests.packaging.machine import ROOT
from tests.packaging.root import Root, find_debian, make_root, run_with
from tests.packaging.wheels import download_wheels

pytestmark = pytest.mark.installs

CONTAINER = ROOT / "packaging/container"
NODE = "node17"
IMAGE = "/opt/hpcverify-image/hpcverify-image"
RUN = (
    *("run", "--suite", "quick", "--check", "inventory", "--check", "sdc"),
    *("--wait", "400s"),  # one node has one lock, which other tests may hold
    "--spool",
)
BUILD_IMAGE = """
folder=$1 debian=$2 wheels=$3
shift 3
cd "$folder"
call() { buildah --root "$folder/store" --runroot "$folder/runtime" "$@"; }
base=$(call from scratch)
call copy --quiet "$base" "$debian" /
call commit --quiet --rm "$base" localhost/debian
cd "$1"
call bud --isolation chroot --build-arg BASE=localhost/debian \
    --volume "$wheels:/mnt:ro" --volume "$wheels/pip.conf:/etc/pip.conf:ro" \
    --file packaging/container/Dockerfile --tag hpcverify .
"""
RUN_IMAGE = """
folder=$1
shift
call() { buildah --root "$folder/store" --runroot "$folder/runtime" "$@"; }
container=$(call from localhost/hpcverify)
call run --isolation chroot --hostname node17 \
    --volume "$folder/state:/var/lib/hpcverify" --volume "$folder/spool:/spool" \
    "$container" hpcverify "$@"
"""
ALL_CAPABILITIES = (
    *("unshare", "--user", "--map-users=0,0,65536", "--map-groups=0,0,65536"),
    *("--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"),
)
"""Apptainer wants every capability, which root of a container lacks: one of a namespace has it."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a wheelhouse of the torch of these tests, for the Python of Debian 12."""
    folder = tmp_path_factory.mktemp("wheels")
    download_wheels(folder, f"torch=={version('torch')}")
    (folder / "pip.conf").write_text(
        "[global]\nfind-links = /mnt\ncert = /etc/ssl/certs/ca-certificates.crt\n"
    )
    return folder


@pytest.fixture(scope="module")
def image(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Build the image of the Dockerfile, in a store of its own."""
    folder = tmp_path_factory.mktemp("image")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    command = ("sh", "-euc", BUILD_IMAGE, "sh", folder, find_debian("bookworm"), wheels, ROOT)
    run_with((), *command)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def host(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Root]:
    """Make a node with Apptainer, and the image of its definition."""
    folder = tmp_path_factory.mktemp("apptainer")
    host = make_root(find_debian("trixie"), folder / "host")
    mirror = subprocess.run([ROOT / ".ci/mirror"], capture_output=True, text=True, check=True)
    sources = host.upper / "etc/apt"
    for name in ("sources.list.d", "preferences.d"):
        (sources / name).mkdir(parents=True)
    # the mirror may be a snapshot
    sid = f"deb [check-valid-until=no] {mirror.stdout.strip()} sid main\n"
    (sources / "sources.list.d/sid.list").write_text(sid)
    (sources / "preferences.d/sid").write_text(
        "Package: *\nPin: release n=sid\nPin-Priority: 100\n"
    )
    host.run(
        "sh", "-c", "apt-get update -qq && apt-get install -qq --no-install-recommends apptainer"
    )
    binds = {
        ROOT: "/checkout",
        find_debian("bookworm"): "/debian",
        wheels: "/mnt",
        wheels / "nodes": "/debian/dev",  # a namespace of users makes none
    }
    (wheels / "nodes").mkdir()
    build = (
        "cd /checkout && apptainer build --bind /mnt,/mnt/pip.conf:/etc/pip.conf "
        "--mksquashfs-args '-comp gzip -Xcompression-level 1' "
        "--build-arg BOOTSTRAP=localimage --build-arg BASE=/debian "
        "/opt/hpcverify-image/hpcverify.sif packaging/container/hpcverify.def"
    )
    (host.upper / "opt/hpcverify-image").mkdir(parents=True)
    host.run(*ALL_CAPABILITIES, "sh", "-c", build, binds=binds)
    (host.upper / "etc/hpcverify").mkdir()
    (host.upper / "etc/hpcverify/hooks.conf").write_text("HPCVERIFY_SPOOL=/shared\n")
    for name in ("var/lib/hpcverify", "shared/spool"):
        (host.upper / name).mkdir(parents=True)
    shutil.copy(CONTAINER / "hpcverify-image", host.upper / "opt/hpcverify-image")
    yield host
    shutil.rmtree(folder)


def read_only_run(folder: Path) -> Run:
    (document,) = folder.glob("*.json")
    return documents.read(document)


def list_verdicts(run: Run) -> dict[str, Verdict]:
    return {result.check: result.verdict for result in run.results}


EXPECTED = {"inventory": Verdict.PASS, "sdc": Verdict.PASS}


def test_the_image_of_the_dockerfile_verifies_a_node_and_leaves_the_run_outside(
    image: Path,
) -> None:
    run_with((), "sh", "-euc", RUN_IMAGE, "sh", image, *RUN, "/spool")
    kept = read_only_run(image / "state/runs")
    assert list_verdicts(kept) == EXPECTED
    assert read_only_run(image / "spool" / NODE) == kept


def run_image(host: Root, script: str) -> None:
    host.run(*ALL_CAPABILITIES, "sh", "-euc", f"hostname {NODE}; {script}", "sh", IMAGE, *RUN)


def test_the_image_of_apptainer_is_the_program_of_a_sweep(host: Root) -> None:
    run_image(host, '"$@" /shared/spool')
    kept = read_only_run(host.upper / "var/lib/hpcverify/runs")
    assert list_verdicts(kept) == EXPECTED
    assert read_only_run(host.upper / "shared/spool" / NODE) == kept


def test_a_run_in_the_image_ends_in_good_order_when_its_job_is_preempted(host: Root) -> None:
    script = """
        "$@" /shared/preempted >/tmp/log 2>&1 &
        until grep -q "sdc on" /tmp/log; do sleep 0.2; done
        kill -TERM $!
        wait $! || true
        cat /tmp/log
    """
    run_image(host, f"mkdir /shared/preempted; {script}")
    ended = read_only_run(host.upper / "shared/preempted" / NODE)
    assert not ended.complete
    assert list_verdicts(ended) == {"inventory": Verdict.PASS, "sdc": Verdict.ERROR}


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    subprocess.run([hadolint, CONTAINER / "Dockerfile"], check=True)
