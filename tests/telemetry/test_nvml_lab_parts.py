"""The healthy nodes of the double are the parts that they say they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcverify.limits.specs import Spec, explain_unknown, find_spec, load_specs
from hpcverify.model import Part
from tests.limits.physics import read_number
from tests.nvml_lab.nvmllab import HERE, Lab
from tests.nvml_lab.parts import profile, strangers

ALL = pytest.mark.parametrize("spec", load_specs(), ids=lambda spec: spec.key)
ONE_OF_EACH_CHIP = (
    *("v100-sxm2-32gb", "a100-sxm4-80gb", "a10", "l4"),
    *("h100-sxm5-80gb", "gh200-96gb", "b200-sxm", "gb300"),
)
HOPPER, BLACKWELL = (9, 0), (10, 0)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Mapping[str, Any]:
    """Look at every node there is, idle; those without bridges end in "/alone"."""
    folder = tmp_path_factory.mktemp("parts")
    stories = {spec.key: profile(spec, busy=False) for spec in load_specs()}
    stories |= {
        f"{spec.key}/alone": profile(spec, busy=False, linked=False) for spec in load_specs()
    }
    stories |= strangers(busy=False)
    (folder / "stories.json").write_bytes(msgspec.json.encode(stories))
    lab = Lab(folder, nvml_library)
    lab.write()
    code = (HERE / "snapshot.py").read_text()
    answers: Mapping[str, Any] = msgspec.json.decode(lab.python(code, folder / "stories.json"))
    return answers


def version(spec: Spec) -> tuple[int, ...]:
    return tuple(map(int, spec.compute_capability.split(".")))


def part(answers: Mapping[str, Any]) -> Part:
    return Part("gpu", "GPU-1", "GPU 0", answers["facts"])


@ALL
def test_each_part_is_recognised_by_its_data_sheet(seen: Mapping[str, Any], spec: Spec) -> None:
    assert find_spec(part(seen[spec.key])) is spec


@pytest.mark.parametrize("name", sorted(strangers(busy=False)))
def test_a_stranger_is_not_taken_for_a_part_of_the_table(
    seen: Mapping[str, Any], name: str
) -> None:
    assert find_spec(part(seen[name])) is None
    assert explain_unknown(part(seen[name]))


@ALL
def test_bad_memory_is_remapped_from_ampere_on_and_retired_before(
    seen: Mapping[str, Any], spec: Spec
) -> None:
    saw, remaps = seen[spec.key], version(spec) >= (8, 0)
    assert (saw["remap"] is not None, saw["histogram"]) == (remaps, remaps)
    assert (saw["retired"] is None, saw["sram"]) == (remaps, remaps)
    assert saw["ecc"] in (0, 2)  # on the last GPU, which may be the only one


@ALL
def test_heat_is_told_in_degrees_up_to_ampere_and_as_margins_later(
    seen: Mapping[str, Any], spec: Spec
) -> None:
    saw, margins = seen[spec.key], version(spec) >= (8, 9)
    told = (saw["margin"] is not None, saw["slowdown_margin"] is not None)
    assert told == (margins, margins)
    assert (saw["threshold"] is None) == margins
    assert margins is False or saw["slowdown_margin"] < 0 < saw["margin"]
    hbm = spec.sheet["memory_type"].text.startswith("HBM")
    assert (saw["memory_temperature"] is not None) == hbm


@ALL
def test_links_count_what_their_generation_counts(seen: Mapping[str, Any], spec: Spec) -> None:
    saw, fifth = seen[spec.key], version(spec) >= BLACKWELL and bool(spec.nvlink_links)
    assert (saw["links"] or 0) == spec.nvlink_links
    assert (saw["link_replay"] is not None) == (spec.nvlink_links > 3 and not fifth)
    newer = ("link_symbol_ber", "link_discards", "link_recoveries")
    assert {saw[name] is not None for name in newer} == {fifth}
    if spec.nvlink_links:  # as signalled: a little more than on the sheet
        signalled = 2 * saw["link_speed"] / 1000
        assert 0.999 < signalled / spec.nvlink_link_gbs < 1.07


def test_only_what_takes_a_bridge_has_links_that_lead_nowhere(seen: Mapping[str, Any]) -> None:
    dark = {s.key for s in load_specs() if seen[f"{s.key}/alone"]["link_state"] == 0}
    pcie = {"a30", "a40", "a100-pcie-40gb", "a100-pcie-80gb", "h100-pcie-80gb"}
    pcie |= {"a800-pcie-80gb", "h800-pcie-80gb"}
    assert dark == pcie | {"h100-nvl-94gb", "h200-nvl", "gh200-96gb", "gh200-144gb"}


@ALL
def test_a_fabric_is_told_from_hopper_on_and_stands_on_boards_with_switches(
    seen: Mapping[str, Any], spec: Spec
) -> None:
    switched = version(spec) >= HOPPER and any(
        form in spec.key for form in ("sxm", "gb200", "gb300", "h20-")
    )
    unswitched = 0 if version(spec) >= HOPPER else None
    assert seen[spec.key]["fabric"] == (3 if switched else unswitched)


@ALL
def test_what_came_with_a_chip_is_not_answered_by_older_ones(
    seen: Mapping[str, Any], spec: Spec
) -> None:
    saw, chip = seen[spec.key], version(spec)
    assert (saw["unrepairable"] is not None) == (chip >= HOPPER)
    assert (saw["recovery"] is not None) == (chip >= (8, 0))
    cut = chip == (8, 0) or HOPPER <= chip <= (12, 0)
    assert (saw["mig"] is not None) == cut
    assert (saw["c2c"] is not None) == spec.key.startswith(("gh", "gb2", "gb3"))
    assert saw["wish"] == saw["default"]
    assert (saw["wish"] is None) == (chip >= BLACKWELL)


def story(key: str, *, busy: bool) -> tuple[Spec, list[str]]:
    [spec] = [spec for spec in load_specs() if spec.key == key]
    return spec, profile(spec, busy=busy)


@pytest.mark.parametrize("key", ONE_OF_EACH_CHIP)
def test_a_busy_gpu_is_warm_capped_and_counts_as_one_does_in_health(lab: Lab, key: str) -> None:
    spec, lines = story(key, busy=True)
    watch = lab.sampled(lines, (10, 60))
    first = {s.name: s.value for s in watch.samples if s.t == 10}
    last = {s.name: s.value for s in watch.samples if s.t == 60}
    energy = last["energy"] - first["energy"]
    assert energy == pytest.approx(50 * last["power"], rel=0.02)
    assert last["power"] <= spec.tdp_w
    assert last["throttled.sw_power_cap"] - first["throttled.sw_power_cap"] == 45
    assert last["event.sw_power_cap"] == 1
    assert last["temperature"] > first["temperature"]
    assert last["temperature.headroom"] > 10
    assert last["clock"] <= (read_number(spec, "max_clock") or 1950)
    still = ("throttled.hw_thermal", "event.hw_slowdown", "ecc.uncorrected")
    assert all(first.get(name, 0) == last.get(name, 0) == 0 for name in still)


@pytest.mark.parametrize("key", ONE_OF_EACH_CHIP)
def test_an_idle_gpu_is_cool_slow_and_says_that_it_is_idle(lab: Lab, key: str) -> None:
    spec, lines = story(key, busy=False)
    at = {s.name: s.value for s in lab.sampled(lines, (60,)).samples}
    assert (at["event.idle"], at["utilization"], at["pcie.generation"]) == (1, 0, 1)
    assert at["power"] < 0.4 * spec.tdp_w
    assert at["clock"] < 500
    assert at["temperature"] < 40


def test_a_memory_error_is_corrected_about_once_an_hour(lab: Lab) -> None:
    _, lines = story("h100-sxm5-80gb", busy=True)
    watch = lab.sampled(lines, (0, 3700))
    corrected = {
        part_id: [sample.value for sample in samples]
        for part_id, samples in watch.group_by_part("ecc.corrected")
    }
    assert sorted(corrected.values()) == [[0, 0]] * 7 + [[2, 3]]


def test_good_siblings_differ_by_a_few_percent(lab: Lab) -> None:
    _, lines = story("h100-sxm5-80gb", busy=True)
    watch = lab.sampled(lines, (300,))
    for name, most in (("clock", 0.02), ("power", 0.01), ("temperature", 0.11)):
        values = [samples[0].value for _, samples in watch.group_by_part(name)]
        assert len(values) == 8
        assert 0 < (max(values) - min(values)) / max(values) < most
