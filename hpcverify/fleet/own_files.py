"""
What of a node's set-up is ours: the spool, its setting, and the settings of the hooks.

`hpcverify doctor` shows it, and `hpcverify setup slurm --write` puts it in place. What is
there already, and was changed by somebody, is never overwritten.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from hpcverify.errors import ConfigError, HpcverifyError
from hpcverify.plan.config import Fleet, Site, drop_in_folder, look_up_uid, site_path, state_dir
from hpcverify.plan.toml import write_value
from hpcverify.records import documents
from hpcverify.records.spool import DIRECTORY_FLAGS
from hpcverify.slurm.hooks import explain_wrong_setting, parse_hook_settings, write_hook_settings
from hpcverify.slurm.requirements import Instruction, Place, Requirement, Stage
from hpcverify.trust import ROOT, refuse_if_others_can_change, refuse_link_of_others, walk_path

DROP_IN = "50-slurm.toml"
SPOOL_MODE = 0o755
REMOVE = "find out who made it, remove it, and repeat hpcverify setup slurm --write"
CHOOSE_SPOOL = "choose a directory that all nodes share: hpcverify setup slurm --spool DIR"


def list_own_requirements(site: Site, fleet: Fleet) -> Iterator[Requirement]:
    """List what must be on this host; *fleet* is that of *site*, with what is to be added to it."""
    if not fleet.spool:
        state = "no file of the site names one"
        yield Requirement(Stage.OBSERVE, "spool", state, fix=CHOOSE_SPOOL)
        return
    yield _need_spool(fleet)
    yield from _need_settings(site, fleet)
    yield _need_hook_settings(site_path().with_name("hooks.conf"), fleet)


def _need_settings(site: Site, fleet: Fleet) -> Iterator[Requirement]:
    """Require that the files of the site say what *fleet* does."""
    subject, path = "configuration", drop_in_folder(site_path()) / DROP_IN
    lines = tuple(
        f"{name} = {write_value(value)}"
        for name in ("spool", "qos")
        if (value := getattr(fleet, name)) != getattr(site.fleet, name)
    )
    if not lines:
        return
    state = f"[fleet] lacks {', '.join(lines)}"
    if path.exists():
        yield Requirement(Stage.OBSERVE, subject, state, fix=f"add that to {path}")
        return
    instruction = Instruction(Place.OURS, (f"{path}:", "[fleet]", *lines))
    yield Requirement(Stage.OBSERVE, subject, state, (instruction,))


def _need_spool(fleet: Fleet) -> Requirement:
    path, owner = Path(fleet.spool), look_up_uid(fleet.user)
    quoted = shlex.quote(fleet.spool)
    own = f"chown {shlex.quote(fleet.user)} {quoted}"
    try:  # nobody who follows a line of ours is to change what somebody's link leads to
        refuse_if_others_can_change(path.parent, shared=True, owner=owner)
        with suppress(OSError), walk_path(path, partial(refuse_link_of_others, owner=owner)):
            pass
    except ConfigError as exc:
        state = f"others can replace {path}"
        return Requirement(Stage.OBSERVE, "spool", state, fix=str(exc))
    if not os.path.isdir(path):  # noqa: PTH112 - Path's raises where it may not look
        state = f"{path} is not a directory"
        # As `make_spool`, without the directories above: they may be what is to be mounted.
        make = f"mkdir -m {SPOOL_MODE:04o} {quoted} && {own}"
        fix = f"mount it, or create it on a shared file system: {make}"
        return Requirement(Stage.OBSERVE, "spool", state, (Instruction(Place.OURS, (make,)),), fix)
    make = f"{own} && chmod {SPOOL_MODE:04o} {quoted}"
    found = path.stat()
    wrong = found.st_uid != owner or found.st_mode & stat.S_IWOTH
    if not wrong:
        return Requirement(Stage.OBSERVE, "spool", str(path))
    state = f"{path} has the owner {found.st_uid} and the mode {stat.S_IMODE(found.st_mode):04o}"
    if found.st_uid not in {ROOT, owner}:
        fix = f"if user {found.st_uid} acts on the fleet, set user of [fleet] to it; else {REMOVE}"
        return Requirement(Stage.OBSERVE, "spool", state, fix=fix)
    instructions = () if any(path.iterdir()) else (Instruction(Place.OURS, (make,)),)
    return Requirement(Stage.OBSERVE, "spool", state, instructions, fix=make)


def _need_hook_settings(path: Path, fleet: Fleet) -> Requirement:
    """Require the file that Slurm's hooks read; they silently ignore what is wrong."""
    if not path.exists():
        values = _list_hook_values(fleet)
        lines = (f"{path}:", *(f"{name}={value}" for name, value in values.items()))
        instruction = Instruction(Place.OURS, lines)
        return Requirement(Stage.OBSERVE, "hooks", f"{path} is missing", (instruction,))
    try:
        refuse_if_others_can_change(path)
        settings = parse_hook_settings(path.read_text(encoding="utf-8", errors="replace"))
    except (HpcverifyError, OSError) as exc:
        fix = "correct that: until then the hooks ignore the file"
        return Requirement(Stage.OBSERVE, "hooks", str(exc), fix=fix)
    wrong = [
        f"{name} = {value!r}: {why}"
        for name, value in settings.items()
        if (why := explain_wrong_setting(name, value, fleet.spool))
    ]
    if "HPCVERIFY_SPOOL" not in settings:
        wrong.append("HPCVERIFY_SPOOL is not set: nothing reaches the controller")
    if (uid := str(look_up_uid(fleet.user))) not in settings.get("HPCVERIFY_USERS", "0").split():
        wrong.append(f"HPCVERIFY_USERS lacks {uid}, the user of [fleet]: a held node stays held")
    if wrong:
        state = f"{path}: {'; '.join(wrong)}"
        return Requirement(Stage.OBSERVE, "hooks", state, fix="correct the file")
    return Requirement(Stage.OBSERVE, "hooks", str(path))


def _list_hook_values(fleet: Fleet) -> dict[str, str]:
    return {
        "HPCVERIFY": find_program(),
        "HPCVERIFY_STATE": str(state_dir()),
        "HPCVERIFY_SPOOL": fleet.spool,
        "HPCVERIFY_USERS": str(look_up_uid(fleet.user)),
    }


def find_program() -> str:
    """Return the path of the command, in the environment of this interpreter."""
    return str(Path(sys.executable).with_name("hpcverify"))


def put_in_place(site: Site, fleet: Fleet) -> Iterator[str]:
    """
    Put in place what `list_own_requirements` lists as ours; yield each path that was made.

    A file is written whole or not at all, and this may be run again at any time.

    Raises:
        ConfigError: a directory cannot be made.
        StoreError: a file cannot be written.

    """
    for requirement in list_own_requirements(site, fleet):
        for instruction in requirement.instructions:
            yield _put(requirement.subject, instruction, fleet)


def _put(subject: str, instruction: Instruction, fleet: Fleet) -> str:
    if subject == "spool":
        return make_spool(Path(fleet.spool), look_up_uid(fleet.user))
    head, *lines = instruction.lines
    path = head.removesuffix(":")
    text = "".join(f"{line}\n" for line in ("# Written by hpcverify setup slurm.", *lines))
    if subject == "hooks":
        text = write_hook_settings(_list_hook_values(fleet))
    documents.write_bytes(Path(path), text.encode(), make=True)
    return path


def make_spool(path: Path, owner: int) -> str:
    """
    Make the spool; one of ours that was left without its owner or mode, and is empty, gets them.

    No link that another user could have put there is followed.

    Raises:
        ConfigError: it cannot be made, or is not ours.

    """
    try:
        with walk_path(path, partial(refuse_link_of_others, owner=owner)) as end:
            with suppress(FileExistsError):
                os.mkdir(end.name, 0o700, dir_fd=end.folder)
            folder = os.open(end.name, DIRECTORY_FLAGS, dir_fd=end.folder)
        try:
            _take_over(path, folder, owner)
        finally:
            os.close(folder)
    except FileNotFoundError as exc:  # nor do we make it: it may be the file system to mount
        fix = f"mount the file system that all nodes share, or: mkdir -p {path.parent}"
        raise ConfigError(
            f"the spool {path} cannot be made: {path.parent} does not exist: {fix}"
        ) from exc
    except OSError as exc:
        raise ConfigError(f"the spool {path} cannot be made: {exc.strerror}") from exc
    return str(path)


def _take_over(path: Path, folder: int, owner: int) -> None:
    """Give the open *folder* at *path* to *owner*, if it is ours and empty."""
    found = os.fstat(folder).st_uid
    if found not in {os.geteuid(), owner}:
        raise ConfigError(
            f"the spool {path} is not taken over: user {found} has just made it: find out who "
            "that is, and remove it"
        )
    if os.listdir(folder):
        raise ConfigError(f"the spool {path} is not taken over: there is something in it")
    os.fchmod(folder, SPOOL_MODE)
    os.fchown(folder, owner, -1)
