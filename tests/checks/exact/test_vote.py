"""Who is outvoted, and when all parts are acquitted because a plan is inexact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from hpcverify.check import JudgedItem, Rule
from hpcverify.limits.resolve import resolve
from hpcverify.model import (
    Cause,
    Device,
    Finding,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Result,
    Verdict,
)
from hpcverify.testing import CPU, judge_by
from hpcverify_checks.exact.reruns import Reruns
from hpcverify_checks.exact.soak import MISMATCH_METRIC
from hpcverify_checks.exact.vote import (
    CORES_GROUP,
    PRODUCT_FINDING_RULES,
    Ballot,
    ProductFault,
    make_answer,
    reconcile,
)

RIGHT, WRONG, OTHER = "0x01", "0x02", "0x03"
RULES = {
    name: Rule(high=0, remedy=Remedy.REPLACE, optional=True)
    for name in ("mismatched_words", "stress.mismatched")
}
ACCUSATION = ProductFault(
    "bf16", "plain", 0, digest=WRONG, expected="0x1", in_memory=False, reruns=Reruns(3)
)


def node(gpus: int, threads: int = 0, cores: int = 0) -> Inventory:
    """Describe a node with so many GPUs, and a CPU with so many threads and cores."""
    facts = {"threads": str(threads), "cores": str(cores)} if cores else {}
    devices = (Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(gpus))
    cpu = Part(kind="cpu", id="cpu", label="CPU", facts=facts)
    return Inventory(parts=(cpu,), devices=(CPU, *devices))


def answers(
    *digests: str, kind: str = "GPU-", name: str = "bf16", group: str = "H100"
) -> list[JudgedItem]:
    return [
        make_answer(f"{kind}{i}", "bf16: first products", Ballot(group, name, digest))
        for i, digest in enumerate(digests)
    ]


def accuse(part_id: str, text: str = "a wrong product", **changes: Any) -> Finding:
    data = msgspec.to_builtins(replace(ACCUSATION, **changes))
    return Finding("corruption", part_id, text, data=data)


def accused(part_id: str, **changes: Any) -> list[JudgedItem]:
    """Accuse a part as the exact phase does, with the numbers that go with it."""
    own = changes.get("metric") == MISMATCH_METRIC
    numbers = {"mismatched_words": 0 if own else 7, "stress.mismatched": 7 * own}
    return [accuse(part_id, **changes), *computed(part_id, **numbers)]


def computed(part_id: str, **numbers: int) -> list[JudgedItem]:
    counts = {"products": 100, "mismatched_words": 0, "stress.mismatched": 0} | numbers
    return [Measurement(name, value, "", part_id) for name, value in counts.items()]


def gpus_accused(count: int, **changes: Any) -> list[JudgedItem]:
    return [item for i in range(count) for item in accused(f"GPU-{i}", **changes)]


def cores_accused(count: int, **changes: Any) -> list[JudgedItem]:
    return [item for i in range(count) for item in accused(f"cpu{i}", **changes)]


def codes(found: Sequence[JudgedItem], inventory: Inventory) -> dict[str, list[str]]:
    """Say which codes each part is left with."""
    left: dict[str, list[str]] = {}
    for item in reconcile(found, inventory):
        if isinstance(item, Finding):
            left.setdefault(item.part_id, []).append(item.code)
    return left


def judge_answers(found: Sequence[JudgedItem], inventory: Inventory) -> Result:
    """Judge what was found as a run does."""
    items = list(reconcile(found, inventory))
    numbers = [i for i in items if isinstance(i, Measurement)]
    limits = resolve(RULES, numbers, inventory, lambda _name, _where: ())
    return judge_by(items, limits, PRODUCT_FINDING_RULES, inventory)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_parts_that_all_agree_pass(count: int) -> None:
    found = answers(*[RIGHT] * count)
    assert judge_answers(found, node(count)).verdict is Verdict.PASS
    assert set(codes(found, node(count))) == {f"GPU-{i}" for i in range(count)}
    texts = {i.text for i in reconcile(found, node(count)) if isinstance(i, Finding)}
    assert texts == {f"bf16: first products; {count} of {count} agree"}


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.parametrize("bad", [0, 2])
def test_one_against_all_others_is_outvoted_and_warns(count: int, bad: int) -> None:
    digests = [WRONG if i == bad else RIGHT for i in range(count)]
    judgement = judge_answers(answers(*digests), node(count))
    assert (judgement.verdict, judgement.remedy) == (Verdict.WARN, Remedy.INSPECT)
    agree = f"its bits differ from those of {count - 1} of {count} parts, which agree"
    assert judgement.reason == f"GPU-{bad}: bf16: {agree}"


@pytest.mark.parametrize("bad", [(1, 2, 3), (0, 1, 3), (0, 1)])
def test_who_is_proven_wrong_has_no_vote(bad: tuple[int, ...]) -> None:
    digests = [WRONG if i in bad else RIGHT for i in range(4)]
    proven = [item for i in bad for item in accused(f"GPU-{i}", digest=f"0x{i + 10}")]
    left = codes([*answers(*digests), *proven], node(4))

    assert {part_id for part_id, said in left.items() if "corruption" in said} == {
        f"GPU-{i}" for i in bad
    }
    assert {said for codes in left.values() for said in codes} == {"corruption", "answer"}


def test_who_an_earlier_check_proved_wrong_has_no_vote() -> None:
    *right, wrong = answers(RIGHT, RIGHT, WRONG)
    assert isinstance(wrong, Finding)
    void = replace(wrong, data=wrong.data | {"void": True})
    assert codes([*right, void], node(3)) == {"GPU-0": ["answer"], "GPU-1": ["answer"]}


def test_of_those_that_are_left_a_majority_is_still_needed() -> None:
    found = [*answers(RIGHT, WRONG, WRONG), *accused("GPU-2")]
    left = codes(found, node(3))

    assert left == {"GPU-0": ["disagreement"], "GPU-1": ["disagreement"], "GPU-2": ["corruption"]}


def test_who_is_outvoted_keeps_both_digests() -> None:
    found = reconcile(answers(RIGHT, RIGHT, WRONG), node(3))
    (outvoted,) = (f for f in found if isinstance(f, Finding) and f.code == "outvoted")
    assert (outvoted.evidence["digest"], outvoted.evidence["most"]) == (WRONG, RIGHT)
    assert outvoted.evidence["votes"] == "2 of 3"


@pytest.mark.parametrize(
    "digests",
    [
        (RIGHT, WRONG),
        (RIGHT, WRONG, OTHER),
        (RIGHT, RIGHT, WRONG, WRONG),
        (RIGHT, RIGHT, WRONG, OTHER),
    ],
)
def test_without_a_majority_nobody_is_accused_and_nobody_passes(digests: tuple[str, ...]) -> None:
    inventory = node(len(digests))
    left = codes(answers(*digests), inventory)
    assert left == {f"GPU-{i}": ["disagreement"] for i in range(len(digests))}
    judgement = judge_answers(answers(*digests), inventory)
    assert (judgement.verdict, judgement.remedy) == (Verdict.ERROR, Remedy.RERUN)
    assert "it is not known which is wrong" in judgement.reason


def test_an_answer_of_one_part_alone_says_that_it_was_put_to_no_vote() -> None:
    (alone,) = reconcile(answers(RIGHT), node(1))
    assert isinstance(alone, Finding)
    assert alone.code == "answer"
    assert "no other part did the same work" in alone.text


def test_other_groups_and_other_questions_do_not_vote_together() -> None:
    (mine,) = answers(WRONG)
    assert isinstance(mine, Finding)
    other_model = replace(mine, data=mine.data | {"group": "A100"})
    other_name = answers(OTHER, OTHER, name="fp8")
    found = [*answers(RIGHT, RIGHT, RIGHT), other_model, *other_name]
    assert judge_answers(found, node(3)).verdict is Verdict.PASS


def test_a_part_that_contradicts_itself_is_outvoted_even_where_it_was_right() -> None:
    found = [*answers(RIGHT, RIGHT, RIGHT), *answers(WRONG)]
    left = codes(found, node(3))
    assert left["GPU-0"] == ["outvoted", "outvoted"]
    assert left["GPU-1"] == left["GPU-2"] == ["answer"]


def test_parts_that_all_contradict_themselves_alike_do_not_agree() -> None:
    found = [*answers(RIGHT, RIGHT, RIGHT), *answers(WRONG, WRONG, WRONG)]
    assert judge_answers(found, node(3)).verdict is Verdict.ERROR


@pytest.mark.parametrize("digests", [(RIGHT, WRONG), (RIGHT, RIGHT, WRONG)])
def test_cores_that_differ_are_worth_a_warning_and_no_more(digests: tuple[str, ...]) -> None:
    judgement = judge_answers(answers(*digests, kind="cpu"), node(0))
    assert judgement.verdict is Verdict.WARN
    assert f"the {len(digests)} cores gave 2 different answers" in judgement.reason


@pytest.mark.parametrize("count", [2, 8])
def test_wrong_bits_that_all_gpus_agree_on_accuse_the_plan(count: int) -> None:
    found = gpus_accused(count)
    judgement = judge_answers(found, node(count))
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.CHECKER)
    assert judgement.remedy is Remedy.FIX_CHECKER
    assert f"all {count} agree on the same wrong bits" in judgement.reason
    assert "a wrong product" in judgement.reason


def test_what_is_disputed_is_no_longer_held_against_the_part() -> None:
    items = list(reconcile(gpus_accused(2), node(2)))
    numbers = [i for i in items if isinstance(i, Measurement) and i.value == 7]
    assert {n.name for n in numbers} == {"disputed_words"}
    assert len([i for i in items if isinstance(i, Measurement)]) == 6


def test_a_gpu_that_is_wrong_alone_fails() -> None:
    found = [*accused("GPU-0"), *computed("GPU-1"), *computed("GPU-2")]
    assert judge_answers(found, node(3)).verdict is Verdict.FAIL
    assert codes(found, node(3)) == {"GPU-0": ["corruption"]}


def test_the_only_gpu_of_a_node_has_nobody_to_agree_with() -> None:
    assert judge_answers(accused("GPU-0"), node(1)).verdict is Verdict.FAIL


def test_a_gpu_that_crashed_is_no_witness_for_the_others() -> None:
    assert judge_answers(gpus_accused(7), node(8)).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "change",
    [
        {"digest": OTHER},
        {"dtype": "fp16"},
        {"plan": "bias+"},
        {"draw": 1},
        {"expected": "0x7"},
        {"in_memory": True},
        {"reruns": Reruns(1)},
        {"digest": ""},
        {"in_memory": None},
        {"reruns": None},
    ],
)
def test_all_stay_accused_where_one_differs_in_anything(change: dict[str, Any]) -> None:
    found = [*gpus_accused(7), *accused("GPU-7", **change)]
    judgement = judge_answers(found, node(8))
    assert judgement.verdict is Verdict.FAIL
    assert codes(found, node(8)) == {f"GPU-{i}": ["corruption"] for i in range(8)}


@pytest.mark.parametrize(
    "change",
    [
        {"in_memory": True},
        {"reruns": Reruns(2)},
    ],
)
def test_what_no_plan_can_do_is_never_blamed_on_one(change: dict[str, Any]) -> None:
    assert judge_answers(gpus_accused(8, **change), node(8)).verdict is Verdict.FAIL


def test_a_fault_of_its_own_is_not_hidden_by_an_inexact_plan() -> None:
    second = accuse("GPU-3", "its own", dtype="fp64")
    found = [*gpus_accused(8), second]
    judgement = judge_answers(found, node(8))
    assert judgement.verdict is Verdict.FAIL
    assert "GPU-3: its own" in judgement.reason
    assert "GPU-3: mismatched_words 7 > 0" in judgement.reason
    assert "GPU-2" not in judgement.reason


def test_wrong_counts_without_an_accusation_are_never_forgiven() -> None:
    found = [*gpus_accused(2), *computed("cpu0", mismatched_words=3)]
    assert judge_answers(found, node(2)).verdict is Verdict.FAIL


def test_a_library_that_repeats_itself_on_no_gpu_is_not_the_gpus_fault() -> None:
    found = gpus_accused(4, metric=MISMATCH_METRIC)
    assert judge_answers(found, node(4)).verdict is Verdict.ERROR
    items = reconcile(found, node(4))
    names = [i.name for i in items if isinstance(i, Measurement) and i.value == 7]
    assert names == ["stress.disputed"] * 4


def test_what_the_exact_phase_found_stands_beside_what_is_disputed() -> None:
    own = gpus_accused(2, metric=MISMATCH_METRIC)
    exact = accuse("GPU-1", "exact", digest=OTHER)
    left = codes([*own, exact], node(2))
    assert left == {"GPU-0": ["inexact"], "GPU-1": ["inexact", "corruption"]}


def test_cores_that_all_agree_on_wrong_bits_are_not_accused() -> None:
    judgement = judge_answers(cores_accused(4), node(0, threads=4, cores=4))
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.CHECKER)
    assert "the cores' shared memory" in judgement.reason


def test_the_threads_of_one_core_are_one_witness() -> None:
    smt = node(0, threads=8, cores=4)
    assert judge_answers(cores_accused(2), smt).verdict is Verdict.FAIL
    assert judge_answers(cores_accused(3), smt).verdict is Verdict.ERROR
    assert judge_answers(cores_accused(2), node(0)).verdict is Verdict.FAIL


def test_one_core_that_computed_rightly_keeps_all_others_accused() -> None:
    found = [*cores_accused(7), *computed("cpu7")]
    assert judge_answers(found, node(0, threads=8, cores=8)).verdict is Verdict.FAIL


def of_another_plan(part_id: str, **changes: Any) -> Finding:
    return accuse(
        part_id, "its own", **{"plan": "bias+", "expected": "0x5", "digest": OTHER} | changes
    )


def test_what_no_other_core_reached_goes_with_the_plan_of_its_type_that_all_did() -> None:
    found = [of_another_plan("cpu1"), *cores_accused(4)]
    inventory = node(0, threads=4, cores=4)
    judgement = judge_answers(found, inventory)
    assert (judgement.verdict, judgement.cause) == (Verdict.ERROR, Cause.CHECKER)
    assert codes(found, inventory)["cpu1"] == ["inexact", "inexact"]


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "fp64"},
        {"metric": MISMATCH_METRIC},
        {"reruns": Reruns(1)},
    ],
)
def test_an_inexact_type_excuses_nothing_that_it_does_not_explain(change: dict[str, Any]) -> None:
    found = [of_another_plan("cpu1", **change), *cores_accused(4)]
    inventory = node(0, threads=4, cores=4)
    assert judge_answers(found, inventory).verdict is Verdict.FAIL
    assert codes(found, inventory)["cpu1"] == ["inexact", "corruption"]


def test_what_changed_in_the_hosts_memory_is_said_once_and_of_no_core() -> None:
    found = [item for i in range(3) for item in accused(f"cpu{i}", in_memory=True)]
    inventory = node(0, threads=4, cores=4)
    left = list(reconcile(found, inventory))

    assert codes(found, inventory) == {"memory": ["memory_changed"]}
    assert {i.name for i in left if isinstance(i, Measurement) and i.value == 7} == {
        "disputed_words"
    }
    assert judge_answers(found, inventory).remedy is Remedy.INSPECT


def test_a_core_that_also_erred_elsewhere_stays_accused_beside_memory() -> None:
    found = [accuse("cpu1", in_memory=True), *accused("cpu1", plan="bias-")]
    left = codes(found, node(0, threads=4, cores=4))

    assert left == {"memory": ["memory_changed"], "cpu1": ["corruption"]}
    assert judge_answers(found, node(0, threads=4, cores=4)).remedy is Remedy.REPLACE


def test_the_memory_of_a_gpu_is_the_gpus() -> None:
    assert codes(accused("GPU-0", in_memory=True), node(2)) == {"GPU-0": ["corruption"]}


def test_a_core_that_was_right_keeps_all_plans_of_the_type_accused() -> None:
    found = [of_another_plan("cpu1"), *cores_accused(3), *computed("cpu3")]
    inventory = node(0, threads=4, cores=4)
    assert codes(found, inventory)["cpu1"] == ["corruption", "corruption"]


def test_gpus_testify_of_all_plans_and_are_excused_by_plan() -> None:
    found = [*gpus_accused(4), of_another_plan("GPU-1")]
    assert judge_answers(found, node(4)).verdict is Verdict.FAIL
    assert codes(found, node(4))["GPU-1"] == ["inexact", "corruption"]


def test_a_core_that_computed_wrongly_has_no_vote_against_its_neighbour() -> None:
    found = [*answers(RIGHT, WRONG, kind="cpu", group=CORES_GROUP), *accused("cpu1")]
    left = codes(found, node(0))
    assert left == {"cpu0": ["answer"], "cpu1": ["corruption"]}


def test_cores_that_nobody_accuses_still_dissent() -> None:
    three = answers(RIGHT, WRONG, OTHER, kind="cpu", group=CORES_GROUP)
    left = codes([*three, *accused("cpu1")], node(0))
    assert left == {"cpu0": ["dissent"], "cpu2": ["dissent"], "cpu1": ["corruption"]}


def test_gpus_that_agree_do_not_acquit_a_core() -> None:
    found = [*gpus_accused(2), *accused("cpu0"), *computed("cpu1")]
    left = codes(found, node(2, threads=2, cores=2))
    assert left == {"GPU-0": ["inexact"], "GPU-1": ["inexact"], "cpu0": ["corruption"]}


def test_everything_else_is_passed_on_untouched() -> None:
    found = [*computed("GPU-0"), *computed("cpu0"), Finding("note", "node", "a fact")]
    assert list(reconcile(found, node(1))) == found


Item = TypeVar("Item", bound=JudgedItem)


def reword(item: Item) -> Item:
    """Say what a finding says in other words."""
    if not isinstance(item, Finding):
        return item
    return replace(item, text="in other words", evidence=dict.fromkeys(item.evidence, "others"))


@pytest.mark.parametrize(
    ("found", "inventory"),
    [
        (gpus_accused(8), node(8)),
        (gpus_accused(8, reruns=Reruns(1)), node(8)),
        (gpus_accused(8, in_memory=True), node(8)),
        ([*gpus_accused(2), accuse("GPU-1", digest=OTHER)], node(2)),
        (cores_accused(4), node(0, threads=4, cores=4)),
        (answers(RIGHT, RIGHT, WRONG), node(3)),
        (answers(RIGHT, WRONG), node(2)),
        (answers(RIGHT, WRONG, kind="cpu", group=CORES_GROUP), node(0)),
    ],
)
def test_no_wording_decides_over_a_part(found: list[JudgedItem], inventory: Inventory) -> None:
    assert codes([reword(item) for item in found], inventory) == codes(found, inventory)
