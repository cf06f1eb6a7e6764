"""Terminal, log, HTML, Markdown and JUnit say the same of a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from hpcverify.commands.show import keep_failed, show_details
from hpcverify.model import (
    Cause,
    Finding,
    FindingRule,
    Limit,
    Maturity,
    Measurement,
    Remedy,
    Result,
    Run,
    Shortfall,
    Verdict,
)
from hpcverify.summary.diagnosis import diagnose_run
from hpcverify.summary.faults import recall_gone_parts
from hpcverify.summary.run_summary import summarize
from hpcverify.summary.terminal import Console, show_run
from hpcverify.summary.verdict import (
    REMEDY_SENTENCES,
)
from hpcverify.summary.wording import format_run
from hpcverify_reports.node import render
from hpcverify_reports.text import junit, markdown
from tests.reports import samples
from tests.reports.dom import Dom

LOST_RULES = {
    "gpu_lost": FindingRule(Verdict.FAIL, Remedy.REBOOT, shared=True),
    "gpu_missing": FindingRule(Verdict.FAIL, Remedy.REBOOT, shared=True),
}
HUNG_RULES = {"gpu_hung": FindingRule(Verdict.ERROR, Remedy.REBOOT, Cause.HUNG, shared=True)}
GONE = "GPU-5c8e2b1a"


def on_terminal(run: Run) -> str:
    console = Console(width=300, highlight=False)
    with console.capture() as shown:
        show_run(run, console)
    return shown.get()


def in_junit(run: Run) -> str:
    properties = ET.fromstring(junit(run)).iter("property")  # noqa: S314 - our own text
    return " ".join(f"{p.get('name')} {p.get('value')}" for p in properties)


def in_junit_case(run: Run, check: str) -> str:
    root = ET.fromstring(junit(run))  # noqa: S314 - our own text
    details = root.findtext(f".//testcase[@name='{check}']/failure", "").partition("\n")[2]
    for gpu in samples.GPUS:
        details = details.replace(gpu.id, gpu.label)
    return details


def in_card(run: Run, check: str) -> str:
    sections = Dom(render(run)).text.partition("All checks")[2]
    return sections.partition(f"{check}: fail")[2].partition("Result by part")[0]


def in_show(run: Run, check: str) -> str:
    console = Console(width=300, highlight=False)
    failed = keep_failed(run)
    with console.capture() as shown:
        show_details(next(r for r in failed.results if r.check == check), run, console)
    return shown.get()


DETAILS: dict[str, Callable[[Run, str], str]] = {
    "junit": in_junit_case,
    "html": in_card,
    "show": in_show,
}
"""What an output prints of one check."""


def in_markdown(run: Run) -> str:
    return Dom(MarkdownIt("commonmark").enable("table").render(markdown(run))).text


OUTPUTS: dict[str, Callable[[Run], str]] = {
    "terminal": on_terminal,
    "log": lambda run: "\n".join(format_run(run)),
    "html": lambda run: Dom(render(run)).text,
    "markdown": in_markdown,
    "junit": in_junit,
}
LINES = ("terminal", "log")
"""Outputs with numbered steps; the others list each part under its action."""


def beta() -> Run:
    return samples.run(replace(samples.gemm(), maturity=Maturity.BETA), samples.ecc())


def required_skip() -> Run:
    warned = samples.result(
        "ecc",
        [Measurement("rate", 9.0, "1/s", samples.SICK)],
        [Limit(name="rate", high=1, otherwise=Verdict.WARN, source="default")],
    )
    return samples.run(warned, replace(samples.edac(), required=True))


def interrupted() -> Run:
    return samples.run(samples.ecc(), complete=False, verdict=Verdict.ERROR)


def lost_gpu() -> Run:
    """Lose a GPU: one check knows which, two know its index only, one could not load it."""
    lost = Finding("gpu_lost", "node", "GPU with NVML index 2: GPU is lost", {"nvml_index": "2"})
    gone = Finding("gpu_missing", GONE, "gpu H100 is gone", {"was": "GPU 2 (…2b1a)"})
    short = Shortfall(GONE, "was here before", Cause.MISSING, code="gpu_missing")
    return samples.run(
        samples.result("recovery", [lost], (), LOST_RULES),
        samples.result("inventory", [lost, gone], (), LOST_RULES),
        samples.result("ecc", [lost], (), LOST_RULES),
        Result(check="gemm", verdict=Verdict.ERROR, reason=short.reason, shortfalls=(short,)),
        samples.result("storage", []),
    )


def hung_gpu() -> Run:
    """Have NVML hang on a GPU, which each check reports in its own words."""
    texts = {"ecc": "nvmlA has not returned", "pcie": "it was not asked: the driver hangs in nvmlA"}
    found = [
        samples.result(name, [Finding("gpu_hung", samples.SICK, text)], (), HUNG_RULES)
        for name, text in texts.items()
    ]
    short = Shortfall(samples.SICK, "nvmlA has not returned", Cause.HUNG, code="gpu_hung")
    gemm = Result(check="gemm", verdict=Verdict.ERROR, reason=short.reason, shortfalls=(short,))
    return samples.run(*found, gemm)


def three_sick_gpus() -> Run:
    """Have one GPU for the vendor, one to replace, and one to reset; two of them also warn."""
    metrics = {
        "pending": (Verdict.WARN, Remedy.RESET_GPU, (2,)),
        "uncorrected": (Verdict.WARN, Remedy.RESET_GPU, (2, 5)),
        "remap": (Verdict.FAIL, Remedy.REPLACE, (5,)),
        "sram": (Verdict.FAIL, Remedy.CONTACT_VENDOR, (7,)),
    }
    ecc = samples.result(
        "ecc",
        [
            Measurement(name, float(i in bad), "", gpu.id)
            for i, gpu in enumerate(samples.GPUS)
            for name, (_, _, bad) in metrics.items()
        ],
        [
            Limit(name=name, high=0, otherwise=verdict, remedy=remedy, source="NVIDIA")
            for name, (verdict, remedy, _) in metrics.items()
        ],
    )
    asked = [Finding("reset", samples.GPUS[i].id, "the driver asks to reset it") for i in (2, 5)]
    rules = {"reset": FindingRule(Verdict.FAIL, Remedy.RESET_GPU)}
    return samples.run(
        samples.result("recovery", asked, (), rules), ecc, samples.storage(), samples.edac()
    )


RUNS = {
    "three sick GPUs": three_sick_gpus(),
    "beta": beta(),
    "required skip": required_skip(),
    "interrupted": interrupted(),
    "lost": lost_gpu(),
    "hung": hung_gpu(),
    "sick": samples.sick_node(10),
    "torn": samples.torn_node(),
    "worn": samples.worn_node(),
    "well": samples.well_node(),
    "skipped": samples.run(samples.edac()),
    "empty": samples.run(verdict=Verdict.ERROR, complete=False),
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", RUNS)
def test_every_output_says_the_same(name: str, output: str) -> None:
    run = RUNS[name]
    shown = " ".join(OUTPUTS[output](run).split())

    assert run.verdict.name in shown.upper()
    assert output in LINES or summarize(run).sentence in shown
    assert ("Nothing to do" in shown) is (run.verdict is Verdict.PASS and output not in LINES)
    if run.verdict is Verdict.PASS:
        return
    assert summarize(run).rerun_command in shown
    if output == "junit":
        assert summarize(run).next_steps in shown
    if output not in LINES:
        names = recall_gone_parts(run)
        for (verdict, remedy), parts in summarize(run).steps.items():
            if verdict is run.verdict:
                assert REMEDY_SENTENCES[remedy] in shown
                assert all(names.find_label(part[0].part_id) in shown for part in parts)


@pytest.mark.parametrize("output", OUTPUTS)
def test_nobody_replaces_a_part_because_a_check_in_beta_failed(output: str) -> None:
    run = beta()
    shown = OUTPUTS[output](run)

    assert run.verdict is Verdict.WARN
    counted = "counts as a warning" if output in LINES else "1 of 2 checks warned."
    assert counted in shown
    assert "replace" not in shown.lower()
    assert "FAIL" not in shown
    assert "Nothing to do" not in shown


@pytest.mark.parametrize("output", OUTPUTS)
def test_the_skip_of_a_required_check_calls_for_something(output: str) -> None:
    run = required_skip()
    shown = OUTPUTS[output](run)

    assert run.verdict is Verdict.ERROR
    counted = "1 of 2 checks could not be judged, 1 warned."
    assert ("counts as an error" if output in LINES else counted) in shown
    assert "orrect the" in shown
    assert "Nothing to do" not in shown


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(("count", "says"), [(1, "1 check passed."), (2, "2 checks passed.")])
def test_an_interrupted_run_counts_right_and_asks_for_another(
    count: int, says: str, output: str
) -> None:
    passed = (samples.ecc(), samples.inventory())[:count]
    run = samples.run(*passed, complete=False, verdict=Verdict.ERROR)
    shown = " ".join(OUTPUTS[output](run).split())

    interrupted = "he run was interrupted before every check had run"
    counted = f"{count} passed: " if output in LINES else f"{says} T{interrupted}."
    assert counted in shown
    assert interrupted in shown
    assert f"All {count}" not in shown
    assert "hpcverify run --suite quick" in shown


def test_checks_that_one_lost_gpu_took_with_it_share_a_diagnosis() -> None:
    lost, missing = diagnose_run(lost_gpu())

    assert lost.checks == ("recovery", "inventory", "ecc")
    assert missing.checks == ("inventory", "gemm")


def test_a_cause_is_the_same_whatever_the_words() -> None:
    (diagnosis,) = diagnose_run(hung_gpu())

    assert diagnosis.checks == ("ecc", "pcie", "gemm")


def test_two_lost_gpus_are_two_causes() -> None:
    results = [
        samples.result(
            check,
            [Finding("gpu_lost", "node", "GPU is lost", {"nvml_index": index})],
            (),
            LOST_RULES,
        )
        for check, index in (("ecc", "2"), ("pcie", "3"))
    ]

    assert [d.checks for d in diagnose_run(samples.run(*results))] == [("ecc",), ("pcie",)]


def test_two_faults_of_one_part_are_both_named_though_they_have_one_code() -> None:
    rules = {"down": FindingRule(Verdict.FAIL)}
    results = [
        samples.result(check, [Finding("down", samples.SICK, text)], (), rules)
        for check, text in (("nvlink", "NVLink 3 is down"), ("pcie", "the link is down"))
    ]

    (diagnosis,) = diagnose_run(samples.run(*results))
    assert diagnosis.faults == ("nvlink down", "pcie down")
    assert diagnosis.text == "NVLink 3 is down; the link is down"


@pytest.mark.parametrize(("name", "also"), [("lost", "inventory, ecc"), ("hung", "pcie, gemm")])
def test_one_cause_is_one_line_with_the_checks_behind_it(name: str, also: str) -> None:
    shown = OUTPUTS["markdown"](RUNS[name])

    assert shown.replace("\n", " ").count(f"; also: {also}") == 1


def test_one_cause_opens_one_section_and_each_check_keeps_its_own() -> None:
    page = Dom(render(hung_gpu()))
    sections = [d for d in page.every("details") if d.get("class") == "check"]

    assert [d["id"] for d in sections if "open" in d] == ["ecc"]
    assert [d["id"] for d in sections] == ["ecc", "pcie", "gemm"]


def test_junit_keeps_a_case_for_each_check() -> None:
    suite = ET.fromstring(junit(hung_gpu())).find("testsuite")  # noqa: S314 - our own text

    assert suite is not None
    assert (suite.get("tests"), suite.get("errors")) == ("3", "3")


def test_inside_a_check_the_part_that_is_farthest_off_comes_first() -> None:
    rates = (99.0, 97.0, 12.0, 98.0)
    slow = [
        Measurement("speed", value, "GB/s", gpu.id)
        for value, gpu in zip(rates, samples.GPUS, strict=False)
    ]
    run = samples.run(samples.result("gemm", slow, [Limit(name="speed", low=100, source="spec")]))
    card = Dom(render(run)).text.partition("All checks")[2]

    assert card.index("12 GB/s") < card.index("97 GB/s") < card.index("98 GB/s")
    assert "GPU 2 (…b3d8), GPU 1 (…17e2), GPU 3 (…4f21) (+1 more)" in OUTPUTS["markdown"](run)
    for output in LINES:
        assert "GPU 0-3  speed 12 GB/s < 100 (spec), worst GPU 2 (…b3d8)" in OUTPUTS[output](run)


@pytest.mark.parametrize("output", DETAILS)
def test_inside_a_check_the_part_with_the_gravest_remedy_comes_first(output: str) -> None:
    shown = DETAILS[output](three_sick_gpus(), "ecc")

    numbers = re.findall(r"(?:GPU |, )(\d)(?= |,)", shown) if output == "show" else None
    assert (numbers or re.findall(r"GPU (\d)", shown)) == ["7", "5", "2", "2", "5"]


@pytest.mark.parametrize("output", ["junit", "html"])
@pytest.mark.parametrize(
    ("check", "steps"),
    [
        ("ecc", ["CONTACT_VENDOR", "REPLACE", "RESET_GPU", "RESET_GPU", "REPLACE"]),
        ("recovery", ["RESET_GPU", "REPLACE"]),
    ],
)
def test_each_part_has_the_one_next_step_of_the_summary(
    check: str, steps: list[str], output: str
) -> None:
    shown = DETAILS[output](three_sick_gpus(), check)
    known = {REMEDY_SENTENCES[remedy]: remedy.name for remedy in Remedy}
    found = re.findall("|".join(map(re.escape, known)), shown)

    assert [known[sentence] for sentence in found] == steps
