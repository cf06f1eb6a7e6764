"""The page of a node: complete, sound, self-contained, worst first."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcverify.check import format_quantity, write_clauses
from hpcverify.model import (
    Cause,
    Coverage,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Measurement,
    Part,
    Remedy,
    Result,
    Run,
    Series,
    Shortfall,
    Verdict,
)
from hpcverify.summary.faults import list_deciding
from hpcverify.units import choose_unit
from hpcverify_reports.labels import format_number
from hpcverify_reports.node import MAX_OPEN_PARTS, render
from hpcverify_reports.pages import EXCERPT_CHARACTERS
from hpcverify_reports.sections import MAX_FAULTS, MAX_OTHER_ROUNDS
from tests.reports import samples
from tests.reports.dom import Dom

BUDGET = 300_000
"""Bytes of the page of 8 GPUs with 6 series of 600 samples each."""


@cache
def sick() -> str:
    return render(samples.sick_node(), history=samples.past())


def dom(run: Run) -> Dom:
    return Dom(render(run))


def next_boxes(page: str) -> list[tuple[str, str]]:
    """Give each action of the page's head with what is below it."""
    head = page.split('<dl class="facts"><div><dt>Machine', maxsplit=1)[0]
    boxes = head.split('<p class="next ')[1:]
    return [(Dom(b).text.split(". ")[0], Dom(b).text) for b in boxes]


def test_what_software_does_to_all_gpus_is_one_card_without_serials() -> None:
    rulings = {"torch": FindingRule(Verdict.ERROR, Remedy.FIX_CONFIGURATION, shared=True)}
    found = [Finding("torch", gpu.id, "no kernels") for gpu in samples.GPUS]
    ((what, card),) = next_boxes(render(samples.run(samples.result("gemm", found, (), rulings))))

    assert "Correct the node's configuration" in what
    assert card.count("no kernels") == 1
    assert f"all {len(samples.GPUS)} GPUs" in card
    assert "Serial" not in card


def test_of_many_parts_the_first_are_open_and_the_others_folded() -> None:
    facts = [Finding("held", gpu.id, "is held") for gpu in samples.GPUS]
    rulings = {"held": FindingRule(Verdict.FAIL)}
    page = render(samples.run(samples.result("gpu_setup", facts, (), rulings)))
    ((_, box),) = next_boxes(page)
    opened, folded = box.split(f"and {len(samples.GPUS) - MAX_OPEN_PARTS} more", maxsplit=1)

    assert "all 8 GPUs" in opened
    assert [gpu.id in opened for gpu in samples.GPUS] == [*[True] * 4, *[False] * 4]
    assert all(gpu.id in folded for gpu in samples.GPUS[MAX_OPEN_PARTS:])


def test_a_lost_gpu_is_one_sentence_with_the_serial_of_the_run_before() -> None:
    lost = Finding("gpu_lost", "node", "GPU with NVML index 2: GPU is lost")
    evidence = {"was": "GPU 2 (…b3d8)", "serial": "1654322021187"}
    gone = Finding("gpu_missing", "GPU-5c8e2b1a", "gpu H100 GPU 2 is gone", evidence)
    ruling = FindingRule(Verdict.FAIL, Remedy.REBOOT)
    rulings = {"gpu_lost": ruling, "gpu_missing": ruling}
    names = ("inventory", "recovery", "ecc", "nvlink", "pcie", "gpu_setup")
    found = [[lost, gone], *([lost] for _ in names[1:])]
    pairs = zip(names, found, strict=True)
    page = render(samples.run(*(samples.result(name, some, (), rulings) for name, some in pairs)))
    ((_, reboot),) = next_boxes(page)

    assert reboot.count("GPU is lost") == 1
    assert "inventory and 5 more checks: GPU with NVML index 2" in reboot
    assert "GPU 2 (…b3d8)" in reboot
    assert "1654322021187" in reboot


@pytest.mark.parametrize(
    ("ruling", "sign"), [(Verdict.PASS, "info"), (Verdict.WARN, "warn"), (Verdict.FAIL, "fail")]
)
def test_a_finding_without_a_verdict_of_its_own_has_no_tick(ruling: Verdict, sign: str) -> None:
    counted = Finding("errors", samples.SICK, "NVLink 11 has 15182 errors")
    lost = Finding("lost", samples.GPUS[1].id, "is lost")
    rulings = {"errors": FindingRule(ruling), "lost": FindingRule(Verdict.FAIL)}
    page = render(samples.run(samples.result("nvlink", [counted, lost], (), rulings)))
    card = page.split('class="check" id="nvlink"')[1].split("</section>")[0]
    (line,) = (part for part in card.split("<p>") if "15182" in part)

    assert f"#mark-{sign}" in line
    assert "#mark-pass" not in card


def reasons(result: Result) -> str:
    """Give what the head of the page says of a run of *result* alone."""
    return dom(samples.run(result)).text.split("All checks", maxsplit=1)[0]


def test_the_first_fault_is_shown_whole_whatever_is_in_its_text() -> None:
    facts = [
        Finding("corruption", samples.SICK, "row 3; column 7; bit 10"),
        Finding("corruption", samples.GPUS[4].id, "row 3; column 7; bit 10"),
        Finding("corruption", samples.SICK, "row 4; column 7; bit 10"),
        Finding("worn", samples.SICK, "a warning; of no weight here"),
    ]
    rulings = {"corruption": FindingRule(Verdict.FAIL), "worn": FindingRule(Verdict.WARN)}
    speed = Measurement("speed", 1.0, "GB/s", samples.SICK)
    limit = Limit(name="speed", low=2.0, source="a site; its file")
    head = reasons(samples.result("sdc", [*facts, speed], [limit], rulings))

    assert head.partition("1654322041187")[2].count("sdc: row 3; column 7; bit 10") == 1
    assert "sdc: row 3; column 7; bit 10; row 4; column 7; bit 10; speed 1 GB/s" in head


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (
            samples.result("gemm", [], [Limit(name="speed", low=1.0, source="here")]),
            "nothing was measured for the limit on speed (here); if that is right,",
        ),
        (
            Result(
                check="gemm",
                verdict=Verdict.ERROR,
                reason="GPU 1: it died; last words: no; GPU 2: it died",
                shortfalls=(
                    Shortfall("1", "GPU 1: it died; last words: no", Cause.CRASHED),
                    Shortfall("2", "GPU 2: it died", Cause.CRASHED),
                ),
                limits=(Limit(name="speed", low=1.0),),
            ),
            "GPU 1: it died; last words: no",
        ),
        (
            Result(check="edac", verdict=Verdict.SKIP, reason="no sensor; no part", required=True),
            "no sensor; no part",
        ),
    ],
    ids=["unmeasured", "crashed", "skipped"],
)
def test_the_reason_of_a_check_without_a_result_is_shown_whole(result: Result, text: str) -> None:
    head = reasons(result)

    assert f"{result.check}: {text}" in head
    assert ("more)" in head) is ("more)" in text)


@pytest.mark.parametrize("made", samples.sick_node(10).results, ids=lambda r: r.check)
def test_faults_are_those_of_the_reason(made: Result) -> None:
    text = "; ".join(write_clauses(list_deciding(made), samples.INVENTORY))

    assert text == ("" if made.verdict is Verdict.SKIP else made.reason)


def test_what_several_checks_find_alike_has_one_card_and_one_reason() -> None:
    lost = Finding("lost", "node", "GPU with NVML index 2: GPU is lost")
    other = Finding("lost", "node", "GPU with NVML index 3: GPU is lost")
    rulings = {"lost": FindingRule(Verdict.FAIL, Remedy.REBOOT)}
    found = {"recovery": lost, "ecc": lost, "pcie": lost, "xid": other}
    results = [samples.result(c, [f], (), rulings) for c, f in found.items()]
    page = dom(samples.run(*results))
    assert [d["id"] for d in page.every("details") if "open" in d] == ["recovery", "xid"]
    assert "recovery, ecc, pcie: GPU with NVML index 2: GPU is lost" in page.text


def test_checks_that_did_not_pass_are_open_and_the_others_folded() -> None:
    folds = [d for d in Dom(sick()).every("details") if d.get("class") == "check"]

    opened = {d["id"] for d in folds if "open" in d}
    assert opened == {"gemm", "sdc", "allreduce", "thermal", "storage"}
    assert len(folds) == 7  # what was skipped is a line


@pytest.mark.parametrize("run", [samples.sick_node(10), samples.worn_node()], ids=["one", "many"])
def test_every_measurement_of_every_round_appears(run: Run) -> None:
    shown = dom(run).text

    for result in run.results:
        for item in result.measurements:
            values = [m.value for m in result.measurements if m.name == item.name]
            _, factor = choose_unit(values, item.unit)
            assert item.name in shown
            assert format_number((item.value or 0.0) * factor) in shown


def counted(values: dict[str, float], limits: list[Limit]) -> Dom:
    """Give the page of a check that counted *values* on each of the eight GPUs."""
    found = [
        Measurement(name, value if gpu.id == samples.SICK else 0.0, "", gpu.id)
        for name, value in values.items()
        for gpu in samples.GPUS
    ]
    return dom(samples.run(samples.result("ecc", found, limits)))


@pytest.mark.parametrize(
    ("value", "low"), [(1.0, None), (0.0, 1.0)], ids=["a part differs", "0 is too low"]
)
def test_a_row_of_zeros_is_not_folded_where_a_part_is_outside(
    value: float, low: float | None
) -> None:
    limit = Limit(name="odd", low=low, high=None if low else 0.0, source="x")
    page = counted({"a": 0, "b": 0, "c": 0, "odd": value}, [limit])

    assert "3 metrics are 0 on all 8 GPUs" in page.text
    assert re.search("odd [≤≥=] . , else fail", page.text)
    assert f"fail {value:g}" in page.text


def test_flags_are_not_drawn_on_an_axis() -> None:
    assert counted({"flag": 1}, []).text.count("from 0 to 1") == 0
    assert counted({"count": 7}, []).text.count("from 0 to 7") == 1


def test_evidence_is_cut_and_says_so() -> None:
    finding = Finding("log", "node", "Xid 79", {"dmesg": "x" * (EXCERPT_CHARACTERS + 123)})
    rulings = {"log": FindingRule(Verdict.FAIL)}

    page = render(samples.run(samples.result("log", [finding], (), rulings)))

    assert "(123 more characters in the run" in page
    assert "x" * (EXCERPT_CHARACTERS + 1) not in page


def test_a_spike_of_one_sample_reaches_the_page() -> None:
    values = (1980.0,) * 300 + (345.0,) + (1980.0,) * 299
    t = tuple(map(float, range(600)))
    series = Series("clock", "MHz", samples.SICK, t, values)

    page = render(samples.run(replace(samples.ecc(), series=(series,))))

    line = re.search(r'stroke-width="[\d.]+" d="M[\d ]+l([^"]+)"', page)
    assert line is not None
    falls = [int(n) for n in re.findall(r"-?\d+", line[1])[1::2]]
    assert max(falls) == -min(falls) > 1000


def test_the_page_needs_no_network() -> None:
    page = Dom(sick())

    assert all(link.startswith("#") for link in page.values("href"))
    assert not list(page.values("src"))
    assert not re.search(r"https?:|@import|url\(|//[a-z]", sick())


def test_the_page_holds_no_script_and_no_style_of_an_element() -> None:
    page = Dom(sick())

    assert not {"script", "iframe", "object", "embed", "link", "form"} & page.tags()
    assert not [name for _, a in page.elements for name in a if name.startswith("on")]
    assert not list(page.values("style"))
    assert "default-src 'none'" in sick()


@pytest.mark.parametrize("rounds", [False, True])
def test_links_lead_somewhere_and_ids_are_unique(*, rounds: bool) -> None:
    page = Dom(worn() if rounds else sick())
    ids = list(page.values("id"))

    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.values("href")} <= set(ids)
    assert "gemm" in ids


def test_labels_refer_to_what_is_there() -> None:
    page = Dom(sick())
    ids = set(page.values("id"))

    assert all(set(names.split()) <= ids for names in page.values("aria-labelledby"))


def test_headings_descend_one_level_at_a_time() -> None:
    levels = [int(tag[1]) for tag in Dom(sick()).tags_in_order("h1", "h2", "h3", "h4")]

    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_table_headers_have_a_scope_and_pictures_a_name_or_none_at_all() -> None:
    page = Dom(sick())

    assert all("scope" in th for th in page.every("th"))
    outer = [s for s in page.every("svg") if "x" not in s]
    assert all(s.get("role") == "img" or s.get("aria-hidden") for s in outer)


def hostile_run(text: str) -> Run:
    part = Part(kind=text, id=f"id {text}", label=text, facts={text: text})
    found: list[Measurement | Finding] = [
        Measurement(text, 1.0, text, part.id),
        Finding(text, part.id, text, {text: text}),
    ]
    limit = Limit(name="*", high=0.0, source=text)
    bad = samples.result(text, found, [limit], {text: FindingRule(Verdict.FAIL)})
    series = Series(text, text, part.id, (0.0, 1.0), (1.0, 2.0))
    return samples.run(
        replace(
            bad,
            reason=text,
            series=(series,),
            coverage=(Coverage(part.id, text),),
            params={text: [text]},
        ),
        id=text,
        node=text,
        suite=text,
        versions={text: text},
        inventory=Inventory(parts=(part,), problems=(Finding(text, text, text),), sensors=(text,)),
    )


@cache
def harmless() -> set[str]:
    return Dom(render(hostile_run("harmless"))).tags()


def test_hostile_markup_comes_out_as_text() -> None:
    page = dom(hostile_run(samples.HOSTILE))

    assert page.tags() == harmless()
    assert page.text.count('<script>alert("x")</script> | a b ␀␛[31m� & <b>') > 10


@given(st.text(min_size=1))
@settings(deadline=None)  # how long a page takes is no part of the rule
def test_no_text_can_add_an_element_or_an_attribute(text: str) -> None:
    shown, plain = dom(hostile_run(text)), dom(hostile_run("harmless"))

    assert shown.tags() == plain.tags()
    names = {name for _, attributes in shown.elements for name in attributes}
    assert names == {name for _, attributes in plain.elements for name in attributes}
    render(hostile_run(text)).encode()


def test_the_same_run_gives_the_same_bytes() -> None:
    assert render(samples.sick_node(), history=samples.past()) == sick()


def test_the_page_keeps_to_its_budget() -> None:
    assert len(sick().encode()) <= BUDGET


def test_hundreds_of_cores_keep_to_the_budget_too() -> None:
    t = tuple(map(float, range(600)))
    series = [
        Series("clock", "MHz", f"cpu{i}", t, tuple(3000.0 + (i * x) % 97 for x in t))
        for i in range(256)
    ]
    cores = [Measurement("fp64.core", 3.0 + i, "GFLOP/s", f"cpu{i}") for i in range(256)]
    result = samples.result("gemm", cores, [Limit(name="*", low=9.0, source="x")])

    page = render(samples.run(replace(result, series=tuple(series))))

    assert len(page.encode()) <= BUDGET


def test_how_to_measure_it_again_is_a_command_line() -> None:
    well = (samples.inventory(), samples.ecc(), samples.edac())
    run = samples.run(*well, samples.gemm(), samples.sdc(), samples.allreduce())
    shown = dom(replace(run, suite="my suite")).text

    assert "hpcverify run --suite 'my suite'" in shown
    assert "--check gemm --check sdc --check allreduce" in shown
    assert "565.57.01" in shown


def test_skips_do_not_hide_what_passed() -> None:
    run = samples.run(samples.ecc(), samples.edac(), verdict=Verdict.PASS)

    assert "1 of 2 checks passed, 1 skipped." in dom(run).text


def test_a_number_of_many_digits_keeps_to_its_column() -> None:
    assert format_number(1.2e13) == "1.2e13"
    assert format_number(53281.7) == "53,282"
    assert format_number(0.0004543) == "0.0004543"
    assert format_number(None) == format_quantity(None, "")


@cache
def worn() -> str:
    return render(samples.worn_node())


def test_every_other_round_can_be_opened_and_is_folded() -> None:
    folds = [d for d in Dom(worn()).every("details") if d.get("class") == "round"]

    ids = [str(d["id"]) for d in folds]
    assert [name for name in ids if name.startswith("gemm")] == ["gemm/1", "gemm/2"]
    assert [name for name in ids if name.startswith("thermal")] == ["thermal/1", "thermal/3"]
    assert not [d for d in folds if "open" in d]


def test_charts_are_of_rounds_that_say_something() -> None:
    charts = len(Dom(render(samples.run(samples.thermal(10)))).every("figure"))

    assert len(Dom(worn()).every("figure")) == charts + 1  # and the speeds of the GPUs


def test_of_hundreds_of_rounds_those_that_did_not_pass_are_shown() -> None:
    bad = {7, 180}
    results = [
        replace(samples.ecc(), round=n, verdict=Verdict.WARN if n in bad else Verdict.PASS)
        for n in range(1, 201)
    ]
    shown = dom(samples.run(*results, rounds=200))
    folds = [d["id"] for d in shown.every("details") if d.get("class") == "round"]

    assert len(folds) == MAX_OTHER_ROUNDS
    assert "ecc/180" in folds
    assert f"and {199 - MAX_OTHER_ROUNDS} more: hpcverify show" in shown.text


def test_only_a_node_that_passed_has_nothing_to_be_done() -> None:
    skipped = samples.run(samples.edac())

    assert "Nothing to do." in dom(samples.well_node()).text
    assert skipped.verdict is Verdict.ERROR
    assert "Nothing to do." not in dom(skipped).text


def test_many_faults_are_counted_and_all_stay_below() -> None:
    bad = [Measurement("rate", float(i), "1/s", f"cpu{i}") for i in range(MAX_FAULTS + 5)]
    limit = Limit(name="rate", low=100.0, source="site.toml")

    shown = dom(samples.run(samples.result("cores", bad, [limit]))).text

    assert "and 5 more below" in shown
    assert f"cpu{MAX_FAULTS + 4} fail {MAX_FAULTS + 4}" in shown


def test_an_interrupted_run_says_so_and_asks_for_another() -> None:
    run = samples.run(samples.ecc(), complete=False, verdict=Verdict.ERROR)
    head = dom(run).text.split("All checks")[0]

    assert "interrupted before every check had run" in head
    assert "Run the check again" in head


@pytest.mark.parametrize("cause", [c for c in Cause if c is not Cause.NONE])
def test_what_could_not_tell_says_why_and_what_to_do(cause: Cause) -> None:
    result = Result(check="gemm", verdict=Verdict.ERROR, cause=cause, remedy=Remedy.RERUN)

    shown = dom(samples.run(result)).text

    assert "gemm: error" in shown
    assert "Run the check again" in shown
