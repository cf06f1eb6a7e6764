"""The hooks, called as slurmd calls them."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpcverify import gate
from hpcverify.gate import JobGate
from tests.fuse import silent_file_system
from tests.own_node import let_all_enter
from tests.slurm.hooks import HERE, LATER, Hooks
from tests.test_gate import CORRUPT
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.needs("root")  # as slurmd starts hooks

HOOKS = ("prolog", "epilog", "healthcheck")
SHELLS = {"sh": ("dash",), "bash": ("bash", "--posix")}
HELD = f"quarantined\n{LATER}\nGPU 3: fell off the bus\n\n"
CLOSED = f"ok\n{LATER}\n\ninventory xid\n"
SLEEP = f"sleep 321.{os.getpid()}"
"""No other test's: it is looked for by its name."""
SLEEPS = f"trap '' TERM INT HUP; {SLEEP} & wait; wait"


@pytest.fixture(params=SHELLS.values(), ids=list(SHELLS))
def hooks(tmp_path: Path, request: pytest.FixtureRequest) -> Hooks:
    made = Hooks(tmp_path, request.param)
    made.prepare()
    made.command()
    return made


def asleep() -> list[str]:
    """Name the processes that a script of `SLEEPS` left behind."""
    command = ("pgrep", "-fx", SLEEP)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def test_a_quarantined_node_refuses_a_job_and_says_why(hooks: Hooks) -> None:
    hooks.word(HELD)
    done = hooks("prolog")
    assert done.returncode == 1
    assert done.stdout == ("print hpcverify: no job starts on n1: GPU 3: fell off the bus\n")


COMMANDS = (
    *("[", "cat", "cd", "command", "declare", "echo", "env", "find", "flock", "local", "mkdir"),
    *("printf", "read", "rm", "sed", "setsid", "sh", "timeout", "umask"),
)
"""What a hook starts, or the shell has; bash does not start if a special one is a function."""


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("word", [HELD, CLOSED], ids=["held", "closed"])
def test_no_function_of_the_caller_runs_in_place_of_a_command(
    hooks: Hooks, hook: str, word: str
) -> None:
    ran = hooks.folder / "ran"
    functions = {f"BASH_FUNC_{name}%%": f"() {{ :>{ran}; }}" for name in COMMANDS}
    hooks.word(word)
    hooks.command(f"env >{hooks.folder}/environment")
    status = hooks(hook).returncode
    assert hooks(hook, **functions).returncode == status == (hook == "prolog" and word == HELD)
    wait_until(hooks.called.exists)
    assert not ran.exists()
    wait_until((hooks.folder / "environment").exists)
    assert "BASH_FUNC" not in (hooks.folder / "environment").read_text()


def test_who_was_let_go_since_the_word_was_fetched_takes_the_job(hooks: Hooks) -> None:
    hooks.word(HELD)
    hooks.command(f"[ $1 = gate ] || exit; printf 'ok\\n{LATER}\\n\\n\\n' >{hooks.state}/gate")
    assert hooks("prolog").returncode == 0
    assert hooks.called.read_text().splitlines()[0] == f"gate --spool {hooks.folder}/spool"


@pytest.mark.system
def test_a_spool_that_hangs_leaves_the_word_as_it_is(hooks: Hooks) -> None:
    hooks.word(HELD)
    hooks.command(f"exec {SLEEP}")
    assert "GPU 3: fell off the bus" in hooks("prolog").stdout
    assert not asleep()


def test_a_hold_without_a_reason_refuses_as_well(hooks: Hooks) -> None:
    hooks.word(f"hold\n{LATER}\n\n\n")
    assert "no job starts on n1: hold" in hooks("prolog").stdout


def test_a_job_of_the_verification_itself_is_let_in_and_nothing_runs_beside_it(
    hooks: Hooks,
) -> None:
    hooks.prepare(HPCVERIFY_USERS="0 4242")
    hooks.word(HELD)
    assert hooks("prolog").returncode == 0
    assert hooks("epilog").returncode == 0
    assert not hooks.called.exists()


@pytest.mark.parametrize(
    "content",
    [*CORRUPT.values(), b"quarantined\n1\nstale\n\n", b"quarantined"],
    ids=[*CORRUPT, "stale", "cut short"],
)
def test_a_word_that_does_not_stand_lets_the_job_run(hooks: Hooks, content: bytes) -> None:
    (hooks.state / "gate").write_bytes(content)
    assert hooks("prolog").returncode == 0


def test_a_word_that_is_no_file_of_its_own_lets_the_job_run(hooks: Hooks) -> None:
    hooks.word(HELD)
    (hooks.state / "gate").rename(hooks.state / "elsewhere")
    (hooks.state / "gate").symlink_to("elsewhere")
    linked = hooks("prolog")
    (hooks.state / "gate").unlink()
    os.mkfifo(hooks.state / "gate")

    assert linked.returncode == 0
    assert hooks("prolog").returncode == 0


def test_missing_state_lets_the_job_run(hooks: Hooks) -> None:
    hooks.prepare(HPCVERIFY_STATE="/proc/nowhere")
    assert hooks("prolog").returncode == 0


LINES = st.sampled_from(
    ["ok", "quarantined", "hold", "", "0", "1", f"{LATER}", "9" * 13, "a b", "a;b", " "]
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.lists(LINES | st.text(max_size=8), max_size=6).map("\n".join))
@example(content=f"quarantined\n{LATER}\nGPU 3: lost\nxid ecc\n")
@example(content=f"ok\n{LATER}\n\nxid\n")
def test_the_prolog_and_gate_read_the_same(tmp_path: Path, content: str) -> None:
    file = tmp_path / "gate"
    file.write_bytes(content.encode(errors="replace"))
    word = gate.read(file) or JobGate("", 0)
    says = bool(word.refuses_jobs or word.checks) and word.until > 0
    conf = tmp_path / "hooks.conf"
    conf.write_text(f"HPCVERIFY_STATE={tmp_path}\n")
    script = (
        f". {HERE}/hooks.sh; read_settings {conf}; parse_gate; set -- $checks; "
        'printf "%s|%s|%s" "$verdict" "$reason" "$*"'
    )
    said = subprocess.check_output(["dash", "-c", script])

    expected = f"{word.verdict}|{word.reason}|{' '.join(word.checks)}" if says else "||"
    assert said.decode(errors="replace") == expected


def test_the_passive_suite_runs_beside_the_job(hooks: Hooks) -> None:
    job = hooks.folder / "job"
    hooks.command(f"until [ -e {job} ]; do sleep 0.05; done", f"echo over >>{hooks.called}")
    done = hooks("prolog")  # whoever waits for our standard output would wait for good
    before = hooks.called.read_text() if hooks.called.exists() else ""
    job.touch()

    assert (done.returncode, done.stdout) == (0, "")
    assert "over" not in before
    wait_until(lambda: hooks.called.exists() and "over" in hooks.called.read_text())
    assert f"run --suite prolog --spool {hooks.folder}/spool\n" in hooks.called.read_text()


def test_what_runs_beside_the_job_is_out_of_slurmds_reach(hooks: Hooks) -> None:
    ids = hooks.folder / "ids"
    hooks.command(
        f"ps -o pid=,sid= -p $$ >{ids}.new", f"ls -l /proc/$$/fd >>{ids}.new", f"mv {ids}.new {ids}"
    )
    hooks("prolog")
    wait_until(ids.exists)
    told = ids.read_text()

    assert told.split()[1] != str(os.getsid(0))
    assert told.count("/dev/null") >= 3
    assert "pipe:" not in told


@pytest.mark.parametrize("hook", HOOKS)
def test_a_suite_that_hangs_ends_by_its_deadline(hooks: Hooks, hook: str) -> None:
    hooks.prepare(HPCVERIFY_DEADLINE=1)
    hooks.word(CLOSED)
    hooks.command(SLEEPS)
    assert hooks(hook).returncode == 0
    wait_until(lambda: not asleep())


@pytest.mark.parametrize("hook", HOOKS)
def test_a_missing_hpcverify_lets_the_job_run(hooks: Hooks, hook: str) -> None:
    hooks.prepare(HPCVERIFY="/nowhere/hpcverify")
    hooks.word(CLOSED)
    assert hooks(hook).returncode == 0


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_without_their_other_half_let_the_job_run(tmp_path: Path, hook: str) -> None:
    shutil.copy(HERE / hook, tmp_path)
    assert subprocess.run([tmp_path / hook], check=False).returncode == 0


def test_hard_evidence_of_a_listed_check_refuses_the_job(hooks: Hooks) -> None:
    hooks.word(CLOSED)
    ours, other = "FAIL  inventory: GPU 3 is gone", "FAIL  ecc: a row is worn"
    hooks.command(f"echo '{other}'", f"echo '{ours}'", "exit 1")
    done = hooks("prolog")

    assert done.returncode == 1
    assert "no job starts on n1: inventory: GPU 3 is gone\n" in done.stdout
    assert "--fail-closed inventory xid" in hooks.called.read_text()


@pytest.mark.parametrize("spool", ["there", ""])
def test_a_node_that_gets_no_place_to_refuse_a_job_lets_it_run(hooks: Hooks, spool: str) -> None:
    if not spool:
        hooks.prepare(HPCVERIFY_SPOOL="")
    hooks.word(CLOSED)
    hooks.command("echo FAIL inventory: GPU 3 is gone", "exit 1", place=not spool)
    assert hooks("prolog").returncode == 0
    assert ("--take-place" in hooks.called.read_text()) is bool(spool)


@pytest.mark.parametrize(
    "lines",
    [
        ("echo FAIL inventory: gone", "exit 0"),  # by a check that is not listed
        ("echo FAIL inventory: gone", "exit 3"),
        ("echo FAIL ecc: worn", "exit 1"),
        ("echo Traceback: no module named hpcverify >&2", "exit 1"),
        ("exit 2",),
        ("kill -9 $$",),
    ],
)
def test_anything_but_hard_evidence_lets_the_job_run(hooks: Hooks, lines: tuple[str, ...]) -> None:
    hooks.word(CLOSED)
    hooks.command(*lines)
    assert hooks("prolog").returncode == 0


def test_nothing_stays_behind_in_the_state(hooks: Hooks) -> None:
    hooks.word(CLOSED)
    hooks("prolog")
    assert [p.name for p in hooks.state.iterdir()] == ["gate"]


def test_a_node_too_crowded_for_a_process_lets_the_job_run(tmp_path: Path) -> None:
    for script in ("prolog", "hooks.sh"):
        shutil.copy(HERE / script, tmp_path)
    let_all_enter(tmp_path)
    # Root may always fork: so as another user, and by dash, as bash tries for 15 s.
    limited = ("setpriv", "--reuid=4343", "--clear-groups", "prlimit", "--nproc=0")
    command = [*limited, "dash", str(tmp_path / "prolog")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "Cannot fork" in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(("mode", "owner"), [(0o666, 0), (0o664, 0), (0o644, 4242)])
def test_settings_that_others_can_change_are_left_alone(
    hooks: Hooks, mode: int, owner: int
) -> None:
    hooks.word(HELD)
    hooks.settings.chmod(mode)
    os.chown(hooks.settings, owner, 0)
    assert hooks("prolog").returncode == 0


def test_settings_are_read_and_never_run(hooks: Hooks, tmp_path: Path) -> None:
    hooks.prepare(HPCVERIFY=f"$(touch {tmp_path}/run)", PATH="/nowhere")
    hooks.word(HELD)
    assert hooks("prolog").returncode == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("deadline", ["", "soon", "0", "600", "9" * 30, "007"])
def test_a_deadline_that_is_none_becomes_one(hooks: Hooks, deadline: str) -> None:
    hooks.prepare(HPCVERIFY_DEADLINE=deadline)
    script = f". {HERE}/hooks.sh; read_settings {hooks.settings}; echo $HPCVERIFY_DEADLINE"
    assert int(subprocess.check_output(["dash", "-c", script], text=True)) in {15, 50}


def test_health_checks_do_not_pile_up(hooks: Hooks) -> None:
    hooks.prepare(HPCVERIFY_DEADLINE=50)
    go = hooks.folder / "go"
    hooks.command(f"until [ -e {go} ]; do sleep 0.1; done")
    first = hooks.start("healthcheck")
    wait_until(hooks.called.exists)
    second = hooks("healthcheck").returncode
    go.touch()

    assert second == 0
    assert first.wait(timeout=PATIENCE_S) == 0
    assert len(hooks.called.read_text().splitlines()) == 1


@pytest.mark.system
@pytest.mark.parametrize("hangs", ["spool", "state"])
def test_hooks_on_a_file_system_that_hangs_end_and_leave_one_process_at_most(
    hooks: Hooks, hangs: str
) -> None:
    mount = hooks.folder / hangs
    mount.mkdir(exist_ok=True)
    if hangs == "spool":
        hooks.word(f"ok\n{LATER}\n\n\n")
    hooks.command(f"ls {mount}/x")
    with silent_file_system(mount):
        started = [hooks.start(hook) for hook in HOOKS * 6]
        ends = [each.wait(timeout=PATIENCE_S) for each in started]
        wait_until(lambda: all(state == "D" for state in states(hooks).values()))
        left = states(hooks)

    assert ends == [0] * len(started)
    assert len(left) == 1


@pytest.mark.system
def test_a_spool_that_hangs_keeps_a_held_node_held_and_costs_one_process(hooks: Hooks) -> None:
    mount = hooks.folder / "spool"
    mount.mkdir()
    hooks.word(HELD)
    hooks.command(f"ls {mount}/x")
    with silent_file_system(mount):
        refused = [hooks.start("prolog") for _ in range(6)]
        ends = [each.wait(timeout=PATIENCE_S) for each in refused]
        wait_until(lambda: all(state == "D" for state in states(hooks).values()))
        left = states(hooks)

    assert ends == [1] * len(refused)
    assert len(left) == 1


def states(hooks: Hooks) -> dict[str, str]:
    """Say in what state the processes are that the hooks have left, by number."""
    found: dict[str, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(hooks.folder).encode() in (process / "cmdline").read_bytes():
                stat = (process / "stat").read_text()
                found[process.name] = stat.rpartition(")")[2].split()[0]
    return found


def test_a_job_starts_while_another_hook_verifies(hooks: Hooks) -> None:
    hooks.prepare(HPCVERIFY_DEADLINE=50)
    hooks.word(CLOSED)
    go = hooks.folder / "go"
    hooks.command(f"until [ -e {go} ]; do sleep 0.1; done", "echo FAIL xid: 79; exit 1")
    first = hooks.start("prolog")
    wait_until(hooks.called.exists)
    second = hooks("prolog").returncode
    go.touch()

    assert second == 0
    assert first.wait(timeout=PATIENCE_S) == 1
    assert hooks.called.read_text().count("run --suite") == 1


@pytest.mark.parametrize("hook", HOOKS)
def test_nothing_of_the_callers_environment_reaches_what_a_hook_runs(
    hooks: Hooks, hook: str
) -> None:
    seen = hooks.folder / "seen"
    hooks.command(f"env >{seen}.new", f"mv {seen}.new {seen}")
    planted = {
        "PYTHONPATH": "/evil",
        "PYTHONSTARTUP": "/evil.py",
        "LD_LIBRARY_PATH": "/evil",
        "HPCVERIFY_CONFIG": "/evil.toml",
        "LINES": "one\nexport PATH=/evil\nHPCVERIFY=/evil",
    }
    hooks(hook, SLURM_JOB_ID="17", **planted)
    wait_until(seen.exists)
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}

    assert "/evil" not in seen.read_text()
    assert {"PATH", "LC_ALL", "SLURM_JOB_ID", "HPCVERIFY_STATE"} <= names
    assert names.isdisjoint(planted)


@pytest.mark.parametrize("name", ["OPTIND", "SHELLOPTS", "BASHOPTS", "BASH_VERSION", "PPID"])
def test_no_variable_of_the_shell_itself_ends_a_hook(hooks: Hooks, name: str) -> None:
    hooks.word(HELD)
    assert hooks("prolog", **{name: "1"}).returncode == 1


@pytest.mark.parametrize(("mode", "owner"), [(0o666, 0), (0o664, 0), (0o644, 4242)])
def test_a_word_that_others_can_change_lets_the_job_run(
    hooks: Hooks, mode: int, owner: int
) -> None:
    hooks.word(HELD)
    (hooks.state / "gate").chmod(mode)
    os.chown(hooks.state / "gate", owner, 4242)
    assert hooks("prolog").returncode == 0


def test_no_user_can_take_the_locks_of_the_hooks(hooks: Hooks) -> None:
    hooks("healthcheck")
    locks = hooks.settings.with_name("hooks.conf.locks")
    assert {path.name for path in locks.iterdir()} == {"look", "seen", "verify"}
    assert locks.stat().st_mode & 0o077 == 0


def test_a_health_check_makes_the_state_where_it_is_missing(hooks: Hooks) -> None:
    hooks.prepare(HPCVERIFY_STATE=hooks.folder / "new/state")
    hooks("healthcheck")
    assert hooks.called.exists()


@pytest.mark.needs("shellcheck")
def test_the_shells_own_critic_has_nothing_to_say() -> None:
    scripts = [str(HERE / name) for name in (*HOOKS, "hooks.sh")]
    command = ("shellcheck", "-x", *scripts)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
