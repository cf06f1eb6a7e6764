"""A site's own script takes nodes out of service, and is not believed blindly."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.errors import ActionError, ConfigError
from hpcverify.fleet.holds import HoldReading, apply_hold
from hpcverify.fleet.holds_script import ScriptBackend
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Node, State

SCRIPT = """#!/bin/sh
# One folder for each node: what is in it holds the node.
cd "$(dirname "$0")/nodes" || exit 1
case $1 in
    look)
        for node in *; do
            held=free
            [ -e "$node/reserved" ] && held=reserved
            [ -e "$node/reason" ] && held=held
            [ -e "$node/reserved" ] && [ -e "$node/reason" ] && held=held+reserved
            [ -e "$node/other" ] && held=other
            printf '%s\\t%s\\t%s\\n' "$node" $held "$(cat "$node/reason" 2>/dev/null)"
        done ;;
    drain | restore) printf '%s' "$3" >"$2/reason" ;;
    resume) rm -f "$2/reason" ;;
    reserve) : >"$2/reserved" ;;
    unreserve) rm -f "$2/reserved" ;;
esac
"""
ODD = 'it\'s "100 %" $HOME `x` \\n\t* ü | a=b'


def a_script(folder: Path, text: str) -> ScriptBackend:
    script = folder / "hold.sh"
    script.write_text(text)
    script.chmod(0o755)
    return ScriptBackend(script, timeout=20)


@pytest.fixture
def keeper(tmp_path: Path) -> ScriptBackend:
    """Make a script that works, with the nodes n1 and n2."""
    for name in ("n1", "n2"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
    return a_script(tmp_path, SCRIPT)


def test_all_nodes_are_given(keeper: ScriptBackend) -> None:
    keeper.drain("n2", "PSU")
    keeper.reserve("n2")

    assert keeper.read_holds() == {
        "n1": HoldReading(node="n1"),
        "n2": HoldReading(node="n2", drained=True, reserved=True, reason="PSU"),
    }


def test_a_reason_comes_back_word_for_word(keeper: ScriptBackend) -> None:
    keeper.restore("n1", ODD)
    assert keeper.read_hold("n1").reason == ODD


def test_a_node_out_of_reach_is_not_to_be_touched(keeper: ScriptBackend, tmp_path: Path) -> None:
    (tmp_path / "nodes/n1/other").touch()
    assert keeper.read_hold("n1").unavailable


@pytest.mark.parametrize(
    "states",
    [
        (State.QUARANTINED, State.VERIFYING, State.HEALTHY),
        (State.SUSPECT, State.QUARANTINED, State.HEALTHY),
    ],
)
def test_a_node_is_held_through_its_life(
    keeper: ScriptBackend, tmp_path: Path, states: tuple[State, ...]
) -> None:
    ledger = Ledger(tmp_path / "state")
    node = Node(name="n1")
    for state in states:
        node = Node(name="n1", state=state, enforced=True, reason=ODD, hold_id=node.hold_id)
        node = apply_hold(node, keeper, ledger)
        seen = keeper.read_hold("n1")
        assert seen.drained is (state is State.QUARANTINED)
        assert seen.reserved is (state in {State.VERIFYING, State.SUSPECT})
    assert (node.hold_id, keeper.read_hold("n2")) == ("", HoldReading(node="n2"))


def test_an_errand_that_fails_is_told_in_the_scripts_words(tmp_path: Path) -> None:
    keeper = a_script(tmp_path, "#!/bin/sh\necho no such node >&2; echo x >&2; exit 3")
    with pytest.raises(ActionError, match=r"hold.sh drain n1: no such node$"):
        keeper.drain("n1", "slow")


def test_a_script_that_hangs_is_given_up(tmp_path: Path) -> None:
    script = a_script(tmp_path, "#!/bin/sh\nexec sleep 60").script
    with pytest.raises(ActionError, match="did not end within"):
        ScriptBackend(script, timeout=0.2).read_holds()


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("", "names no node"),
        ("n1\\tfree\\t\\nn1\\theld\\t\\n", "names a node twice"),
        ("n1\\tgone\\t\\n", "not NODE, HELD and REASON"),
        ("n1 free\\n", "not NODE, HELD and REASON"),
        ("n2\\tfree\\t\\n", "does not name n1"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(tmp_path: Path, printed: str, why: str) -> None:
    keeper = a_script(tmp_path, f"#!/bin/sh\nprintf '{printed}'")
    with pytest.raises(ActionError, match=why):
        keeper.read_hold("n1")


@pytest.mark.needs("root")
@pytest.mark.parametrize("loose", ["hold.sh", "."])
def test_a_script_that_others_can_change_is_refused(
    keeper: ScriptBackend, tmp_path: Path, loose: str
) -> None:
    (tmp_path / loose).chmod(0o777)
    with pytest.raises(ConfigError, match="can be changed by other users"):
        keeper.drain("n1", "slow")
    assert not (tmp_path / "nodes/n1/reason").exists()


def test_a_script_that_is_missing_or_not_to_be_run_is_named(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")

    with pytest.raises(ActionError, match="missing"):
        ScriptBackend(tmp_path / "missing").read_holds()
    with pytest.raises(ConfigError, match="Permission denied"):
        ScriptBackend(plain).read_holds()


@pytest.mark.parametrize("path", ["", "hold.sh"])
def test_a_script_is_named_by_its_absolute_path(path: str) -> None:
    with pytest.raises(ConfigError, match="not an absolute path"):
        ScriptBackend(Path(path)).read_holds()
