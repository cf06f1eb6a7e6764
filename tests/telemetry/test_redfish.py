"""BMCs on loopback, read over TLS: both generations of the schema, and what goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.check import Cause, Unable
from hpcverify.telemetry.chassis import (
    ChassisSensor,
    Defect,
    RedundancyState,
    SensorHealth,
    SensorKind,
)
from hpcverify.telemetry.redfish import client
from hpcverify.telemetry.redfish.event_log import MAX_EVENTS
from hpcverify.telemetry.redfish.walk import ChassisReading, read_chassis
from tests.redfish_lab.resources import (
    CHASSIS,
    ENTRIES,
    MANAGER,
    SYSTEM,
    Tree,
    make_collection,
    make_entry,
    make_link,
    make_new_tree,
    make_old_tree,
    set_entries,
)
from tests.redfish_lab.server import (
    PASSWORD,
    SESSIONS,
    TOKEN,
    FakeBmc,
    Fault,
    answer_with,
    break_off,
    flood,
    hang,
    make_certificate,
    serve,
    trickle,
)
from tests.waiting import wait_until

GENERATIONS = pytest.mark.parametrize("make_tree", [make_old_tree, make_new_tree])
CRITICAL = {"State": "Enabled", "Health": "Critical"}
THERMAL, POWER = f"{CHASSIS}/Thermal", f"{CHASSIS}/Power"
SUBSYSTEM = f"{CHASSIS}/PowerSubsystem/PowerSupplies"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def bmc(tmp_path: Path, certificate: Path) -> Iterator[FakeBmc]:
    """Serve a healthy BMC of the old generation; a test may change it."""
    made = FakeBmc(tmp_path / "bmc", certificate, make_old_tree())
    with serve(made):
        yield made


def read(bmc: FakeBmc, **changes: Any) -> ChassisReading:
    bmc.write()
    return read_chassis(bmc.make_access(**changes))


def read_tree(bmc: FakeBmc, tree: Tree) -> ChassisReading:
    bmc.tree = tree
    return read(bmc)


def of_kind(reading: ChassisReading, kind: SensorKind) -> list[ChassisSensor]:
    return [sensor for sensor in reading.chassis.sensors if sensor.kind is kind]


def find(reading: ChassisReading, name: str) -> ChassisSensor:
    return next(sensor for sensor in reading.chassis.sensors if sensor.name == name)


def refuse(bmc: FakeBmc, **changes: Any) -> Unable:
    """Read *bmc* in vain, and return why."""
    with pytest.raises(Unable) as caught:
        read(bmc, **changes)
    return caught.value


@GENERATIONS
def test_a_healthy_chassis_reads_the_same_in_both_generations(
    bmc: FakeBmc, make_tree: Callable[[], Tree]
) -> None:
    reading = read_tree(bmc, make_tree())

    there = [s for s in reading.chassis.sensors if s.health is not SensorHealth.ABSENT]
    assert {s.health for s in there} == {SensorHealth.OK}
    fans = of_kind(reading, SensorKind.FAN)
    assert [(f.part, f.value, f.unit) for f in fans] == [
        (f"Fan {n}", 8000 + n, "RPM") for n in (1, 2, 3)
    ]
    assert [s.part for s in of_kind(reading, SensorKind.POWER_SUPPLY)] == ["PSU 1", "PSU 2"]
    inlet, cpu = find(reading, "Inlet Temp"), find(reading, "CPU1 Temp")
    assert (inlet.is_ambient, cpu.is_ambient) == (True, False)
    assert (cpu.value, cpu.unit, cpu.thresholds.high_critical) == (41, "°C", 95)
    groups = [(g.kind, g.state) for g in reading.chassis.redundancy]
    assert groups == [
        (SensorKind.FAN, RedundancyState.FULL),
        (SensorKind.POWER_SUPPLY, RedundancyState.FULL),
    ]
    assert (reading.unreadable, reading.notes) == ((), ())


def test_a_bmc_says_what_it_is_and_keeps_its_password_to_itself(bmc: FakeBmc) -> None:
    reading = read(bmc)

    assert reading.chassis.bmc.firmware == "1.45.455b66-rev4"
    assert (reading.chassis.bmc.maker, reading.chassis.bmc.product) == ("Contoso", "3500RX")
    assert reading.chassis.log.identity == bmc.tree[MANAGER]["UUID"]
    assert reading.facts == {"BIOS setting ProcTurboMode": "Enabled"}


def test_both_generations_on_one_bmc_are_one_set_of_parts(bmc: FakeBmc) -> None:
    old, new = make_old_tree(), make_new_tree()
    both = old | new
    both[CHASSIS] = old[CHASSIS] | new[CHASSIS]

    reading = read_tree(bmc, both)

    assert len(of_kind(reading, SensorKind.FAN)) == 3
    assert len(of_kind(reading, SensorKind.POWER_SUPPLY)) == 2
    assert len(reading.chassis.redundancy) == 2


def test_a_fan_a_temperature_and_a_group_are_as_bad_as_the_bmc_says(bmc: FakeBmc) -> None:
    bmc.tree[THERMAL]["Fans"][1] |= {"Reading": 0, "Status": CRITICAL}
    bmc.tree[THERMAL]["Temperatures"][0]["Status"] = {"State": "Enabled", "Health": "Warning"}
    bmc.tree[THERMAL]["Redundancy"][0]["Status"] = CRITICAL

    reading = read(bmc)

    fan = find(reading, "Fan 2")
    assert (fan.health, fan.value, fan.said) == (SensorHealth.CRITICAL, 0, "Critical, Enabled")
    assert find(reading, "CPU1 Temp").health is SensorHealth.WARNING
    assert reading.chassis.redundancy[0].state is RedundancyState.LOST


@pytest.mark.parametrize(
    ("status", "defect"),
    [("LossOfInput", Defect.INPUT_LOST), ("OutOfRange", Defect.INPUT_WRONG), ("Normal", "")],
)
def test_a_cable_is_told_from_a_power_supply(bmc: FakeBmc, status: str, defect: str) -> None:
    tree = make_new_tree()
    tree[f"{SUBSYSTEM}/Bay2"] |= {"LineInputStatus": status, "Status": CRITICAL}

    supply = of_kind(read_tree(bmc, tree), SensorKind.POWER_SUPPLY)[1]

    assert (supply.part, supply.health, supply.defect) == ("PSU 2", SensorHealth.CRITICAL, defect)


def test_the_old_generation_tells_a_cable_by_its_voltage(bmc: FakeBmc) -> None:
    bmc.tree[POWER]["PowerSupplies"][0] |= {"LineInputVoltage": 0, "Status": CRITICAL}

    assert find(read(bmc), "PSU 1").defect is Defect.INPUT_LOST


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"Status": {"State": "UnavailableOffline", "Health": "OK"}}, RedundancyState.UNKNOWN),
        ({"Status": {"State": "Disabled"}}, RedundancyState.DISABLED),
        ({"RedundancyEnabled": False}, RedundancyState.DISABLED),
        ({"RedundancySet": []}, RedundancyState.DISABLED),
        ({"Status": {"State": "Enabled", "Health": "Warning"}}, RedundancyState.DEGRADED),
    ],
)
def test_a_group_that_was_set_up_without_redundancy_lost_none(
    bmc: FakeBmc, changes: dict[str, Any], state: RedundancyState
) -> None:
    bmc.tree[POWER]["Redundancy"][0] |= changes

    assert read(bmc).chassis.redundancy[1].state is state


def test_an_empty_bay_is_absent_and_a_part_that_says_nothing_is_unknown(bmc: FakeBmc) -> None:
    bmc.tree[POWER]["PowerSupplies"][1]["Status"] = {"State": "Absent"}
    bmc.tree[THERMAL]["Fans"][0]["Status"] = {"State": "Enabled", "Health": None}

    reading = read(bmc)

    assert find(reading, "PSU 2").health is SensorHealth.ABSENT
    assert find(reading, "Fan 1").health is SensorHealth.UNKNOWN


def test_of_a_node_that_is_switched_off_only_what_still_works_is_told(bmc: FakeBmc) -> None:
    bmc.tree[SYSTEM]["PowerState"] = "Off"
    for fan in bmc.tree[THERMAL]["Fans"]:
        fan |= {"Reading": 0, "Status": CRITICAL}

    reading = read(bmc)

    assert {s.kind for s in reading.chassis.sensors} == {SensorKind.POWER_SUPPLY}
    assert [g.kind for g in reading.chassis.redundancy] == [SensorKind.POWER_SUPPLY]
    assert "the node is off" in reading.notes[0]


def test_a_fault_of_a_fan_without_thresholds_is_of_the_fan_itself(bmc: FakeBmc) -> None:
    tree = make_new_tree()
    fan = tree[f"{CHASSIS}/ThermalSubsystem/Fans/Bay2"]
    fan |= {"SpeedPercent": {"Reading": 0, "SpeedRPM": 0}, "Status": CRITICAL}

    sensor = of_kind(read_tree(bmc, tree), SensorKind.FAN)[1]

    assert (sensor.name, sensor.health, sensor.value) == ("Fan 2", SensorHealth.CRITICAL, None)
    assert sensor.said == "Critical, Enabled, at 0 RPM"


def test_parts_of_two_chassis_that_are_called_alike_are_told_apart(bmc: FakeBmc) -> None:
    bmc.tree |= make_collection("Chassis", ["1U", "2U"])
    bmc.tree["Chassis/2U"] = dict(bmc.tree[CHASSIS])

    names = [s.name for s in read(bmc).chassis.sensors]

    assert "Fan 1" in names
    assert "Fan 1 (2)" in names
    assert len(set(names)) == len(names)


# -- the event log


def test_an_entry_names_its_part_its_time_and_whether_it_is_over(bmc: FakeBmc) -> None:
    psu = f"{POWER}#/PowerSupplies/0"
    bmc.tree[POWER]["PowerSupplies"][0] |= make_link(psu)
    lost = {"SensorType": "Power Supply / Converter", "Severity": "Critical"}
    origin = {"Links": {"OriginOfCondition": make_link(psu)}}
    entries = [
        make_entry(1, "Power supply AC lost", EntryCode="Assert", **lost, **origin),
        make_entry(2, "Power supply AC lost", EntryCode="Deassert", **lost),
        make_entry(3, "Fan 1 failed", Severity="Critical", Resolved=True),
    ]
    set_entries(bmc.tree, entries)

    first, second, third = read(bmc).chassis.log.events

    assert (first.part, first.text) == ("PSU 1", "Power supply AC lost")
    assert first.subject == "Power Supply / Converter"
    assert (first.asserted, first.severity) == (True, SensorHealth.CRITICAL)
    assert first.time == 1795305601
    assert (second.asserted, third.asserted) == (False, False)


def test_a_code_that_says_what_happened_goes_before_the_message(bmc: FakeBmc) -> None:
    code = {"EntryCode": "Upper Critical - going high", "SensorType": "Temperature"}
    set_entries(bmc.tree, [make_entry(1, "CPU1 Temp", **code)])

    assert read(bmc).chassis.log.events[0].text == "Upper Critical going high: CPU1 Temp"


def test_the_oldest_entry_comes_first_whatever_the_order_of_the_bmc(bmc: FakeBmc) -> None:
    set_entries(bmc.tree, [make_entry(n, f"event {n}") for n in (3, 2, 1)])

    texts = [event.text for event in read(bmc).chassis.log.events]

    assert texts == ["event 1", "event 2", "event 3"]


def test_all_pages_of_a_log_are_read(bmc: FakeBmc) -> None:
    bmc.page = 10
    set_entries(bmc.tree, [make_entry(n, f"event {n}") for n in range(45)])

    assert len(read(bmc).chassis.log.events) == 45


@pytest.mark.parametrize("is_skip_known", [True, False])
def test_of_a_long_log_the_newest_entries_are_read(bmc: FakeBmc, is_skip_known: bool) -> None:  # noqa: FBT001 - a parameter of the test
    bmc.page, bmc.is_skip_known = 100, is_skip_known
    set_entries(bmc.tree, [make_entry(n, f"event {n}") for n in range(2000)])

    events = read(bmc).chassis.log.events

    assert len(events) == MAX_EVENTS
    assert events[-1].text == "event 1999"
    asked = [line for line in bmc.requests if "Entries?" in line]
    assert len(asked) == (5 if is_skip_known else 20)


def test_a_log_that_only_links_to_its_entries_is_followed(bmc: FakeBmc) -> None:
    for number in (1, 2):
        bmc.tree[f"{ENTRIES}/{number}"] = make_entry(number, f"event {number}")
    bmc.tree |= make_collection(ENTRIES, ["1", "2"])

    assert [e.text for e in read(bmc).chassis.log.events] == ["event 1", "event 2"]


def test_a_log_whose_pages_form_a_loop_is_unread_and_the_rest_is_read(bmc: FakeBmc) -> None:
    bmc.tree[ENTRIES]["Members@odata.nextLink"] = make_link(ENTRIES)["@odata.id"]
    assert read(bmc).chassis.log.unread_reason == ""  # all entries were in the first page
    bmc.tree[ENTRIES]["Members@odata.count"] = 2

    reading = read(bmc)

    assert "form a loop" in reading.chassis.log.unread_reason
    assert len(of_kind(reading, SensorKind.FAN)) == 3


def test_a_log_without_an_end_ends_the_reading(
    bmc: FakeBmc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_REQUESTS", 100)

    def give_another_page(handler: Any) -> None:
        number = len(bmc.requests)
        link = f"/redfish/v1/{ENTRIES}?$skip={number}"
        entry = f'{{"Id": "{number}", "Message": "x"}}'
        handler.reply(200, f'{{"Members": [{entry}], "@odata.nextLink": "{link}"}}'.encode())

    bmc.faults[ENTRIES] = give_another_page

    assert "more than 100 resources" in str(refuse(bmc))
    assert bmc.open_sessions == 0


def test_a_log_that_a_system_and_its_manager_show_is_read_once(bmc: FakeBmc) -> None:
    logs = f"{MANAGER}/LogServices"
    bmc.tree[MANAGER]["LogServices"] = make_link(logs)
    bmc.tree |= make_collection(logs, ["Sel", "AuditLog"])
    for name in ("Sel", "AuditLog"):
        bmc.tree[f"{logs}/{name}"] = {"Id": name, "Entries": make_link(f"{logs}/{name}/Entries")}
        bmc.tree[f"{logs}/{name}/Entries"] = bmc.tree[ENTRIES]

    assert len(read(bmc).chassis.log.events) == 1
    assert not any("AuditLog/Entries" in line for line in bmc.requests)


def test_nothing_is_ever_cleared_or_changed(bmc: FakeBmc) -> None:
    read(bmc)

    others = [line for line in bmc.requests if not line.startswith("GET ")]
    assert others == [
        "POST /redfish/v1/SessionService/Sessions",
        "DELETE /redfish/v1/SessionService/Sessions/1",
    ]


# -- who answers


def test_a_wrong_password_is_tried_once_and_never_quoted(bmc: FakeBmc) -> None:
    bmc.password = "another"  # noqa: S105 - of a BMC that is a test

    why = refuse(bmc)

    assert why.cause is Cause.DENIED
    assert (bmc.logins, bmc.open_sessions) == (1, 0)
    assert PASSWORD not in str(why)


@pytest.mark.parametrize("status", [400, 403])
def test_a_locked_account_is_a_refusal_too(bmc: FakeBmc, status: int) -> None:
    bmc.faults["POST SessionService/Sessions"] = answer_with(status)

    assert refuse(bmc).cause is Cause.DENIED


def test_a_certificate_that_is_not_trusted_gets_no_password(bmc: FakeBmc) -> None:
    why = refuse(bmc, ca="")

    assert (why.cause, bmc.logins) == (Cause.MISCONFIGURED, 0)
    assert "self-signed certificate" in str(why)
    assert "set ca in [bmc]" in str(why)


def test_a_site_may_do_without_trust(bmc: FakeBmc) -> None:
    assert read(bmc, ca="", verify=False).chassis.sensors


def test_nobody_at_the_address_is_silence(tmp_path: Path, certificate: Path) -> None:
    bmc = FakeBmc(tmp_path / "bmc", certificate, {"": {}}, port=1)

    why = refuse(bmc)

    assert why.cause is Cause.TIMEOUT
    assert "does not respond (no connection)" in str(why)


LEAVES_A_SOCKET = pytest.mark.filterwarnings(
    # The thread that waits for a BMC is left behind, and its socket with it.
    "ignore:Exception ignored in.*socket:pytest.PytestUnraisableExceptionWarning"
)


@LEAVES_A_SOCKET
@pytest.mark.parametrize("place", ["", "POST SessionService/Sessions"])
@pytest.mark.parametrize("fault", [hang, trickle])
def test_a_bmc_that_hangs_or_trickles_ends_with_its_time(
    bmc: FakeBmc, place: str, fault: Fault
) -> None:
    bmc.faults[place] = fault
    began = time.monotonic()

    why = refuse(bmc, seconds=1)

    assert why.cause is Cause.TIMEOUT
    assert time.monotonic() - began < 600
    assert bmc.open_sessions == 0


@LEAVES_A_SOCKET
@pytest.mark.parametrize("fault", [hang, trickle])
def test_a_bmc_that_hangs_or_trickles_once_it_has_a_session_is_left_without_one(
    bmc: FakeBmc, fault: Fault
) -> None:
    bmc.faults["Chassis"] = fault

    assert refuse(bmc, seconds=3).cause is Cause.TIMEOUT
    wait_until(lambda: bmc.open_sessions == 0)  # the login may have been late


@LEAVES_A_SOCKET
def test_a_session_that_comes_too_late_is_deleted_all_the_same(bmc: FakeBmc) -> None:
    is_over = threading.Event()

    def come_late(handler: Any) -> None:
        is_over.wait()
        bmc.open_sessions += 1
        handler.reply(201, b"{}", X_Auth_Token=TOKEN, Location=f"{SESSIONS}/1")

    bmc.faults["POST SessionService/Sessions"] = come_late
    try:
        assert refuse(bmc, seconds=2).cause is Cause.TIMEOUT
    finally:
        is_over.set()

    wait_until(
        lambda: (
            sum(line.startswith("POST") for line in bmc.requests)
            == sum(line.startswith("DELETE") for line in bmc.requests)
        )
    )


@pytest.mark.parametrize("answers", [1, 2, 3])
def test_a_bmc_that_closes_connections_unasked_is_read_and_left_without_a_session(
    bmc: FakeBmc, answers: int
) -> None:
    bmc.answers_per_connection = answers

    assert read(bmc).unreadable == ()

    assert (bmc.logins, bmc.open_sessions) == (1, 0)


@pytest.mark.parametrize(
    "location", ["https://{address}{path}/1", "{path}/1", "Sessions/1", "//{address}{path}/1"]
)
def test_a_session_is_deleted_however_its_place_is_written(bmc: FakeBmc, location: str) -> None:
    bmc.location = location.format(address=bmc.address, path=SESSIONS)

    read(bmc)

    assert f"DELETE {SESSIONS}/1" in bmc.requests


def test_a_session_whose_header_names_no_place_is_deleted_by_its_body(bmc: FakeBmc) -> None:
    def open_session(handler: Any) -> None:
        bmc.open_sessions += 1
        body = b'{"@odata.id": "%s/1"}' % SESSIONS.encode()
        handler.reply(201, body, X_Auth_Token=TOKEN, Location="https://[no-address/1")

    bmc.faults["POST SessionService/Sessions"] = open_session

    read(bmc)

    assert bmc.open_sessions == 0


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("location", ["/redfish/v1/Chassis1/", "https://{}/redfish/v1/Chassis1/"])
def test_a_redirection_to_a_path_of_the_same_bmc_is_followed(
    bmc: FakeBmc, status: int, location: str
) -> None:
    bmc.tree["Chassis1"] = bmc.tree["Chassis"]
    bmc.faults["Chassis"] = answer_with(status, Location=location.format(bmc.address))

    reading = read(bmc)

    assert reading.unreadable == ()
    assert len(of_kind(reading, SensorKind.FAN)) == 3


def test_a_login_that_is_redirected_to_a_trailing_slash_is_made_there(bmc: FakeBmc) -> None:
    bmc.faults["POST SessionService/Sessions"] = answer_with(308, Location=f"{SESSIONS}/")

    assert read(bmc).unreadable == ()
    assert (bmc.logins, bmc.open_sessions) == (1, 0)


@pytest.mark.parametrize(
    ("status", "location"), [(302, ""), (307, SESSIONS), (303, f"{SESSIONS}/1")]
)
def test_a_redirection_that_names_no_other_place_tries_the_password_once(
    bmc: FakeBmc, status: int, location: str
) -> None:
    bmc.faults["POST SessionService/Sessions"] = answer_with(status, Location=location)

    assert f"HTTP {status}" in str(refuse(bmc))
    assert [request for request in bmc.requests if "POST" in request] == [f"POST {SESSIONS}"]


@pytest.mark.parametrize(
    "end", [pytest.param("cut", id="cut"), pytest.param("open", marks=LEAVES_A_SOCKET)]
)
def test_a_login_whose_body_is_broken_or_never_ends_leaves_no_session(
    bmc: FakeBmc, end: str
) -> None:
    def open_session(handler: Any) -> None:
        bmc.open_sessions += 1
        break_off(handler, status=201, X_Auth_Token=TOKEN, Location=f"{SESSIONS}/1")
        if end == "open":
            hang(handler)

    bmc.faults["POST SessionService/Sessions"] = open_session

    if end == "open":
        assert refuse(bmc, seconds=2).cause is Cause.TIMEOUT
    else:
        assert read(bmc).unreadable == ()
    assert bmc.open_sessions == 0


def test_a_redirection_to_another_host_is_not_followed(
    bmc: FakeBmc, tmp_path: Path, certificate: Path
) -> None:
    other = FakeBmc(tmp_path / "other", certificate, make_old_tree())
    with serve(other):
        there = f"https://{other.address}/redfish/v1/Chassis"
        bmc.faults["Chassis"] = answer_with(302, Location=there)

        assert read(bmc).unreadable == ("Chassis: HTTP 302",)

    assert other.requests == []
    assert bmc.open_sessions == 0


@pytest.mark.parametrize("location", ["/redfish/v1/Chassis", "/login", "https://[x", ""])
def test_a_redirection_that_leads_nowhere_makes_one_resource_unreadable(
    bmc: FakeBmc, location: str
) -> None:
    bmc.faults["Chassis"] = answer_with(302, Location=location)

    reading = read(bmc)

    assert reading.unreadable == ("Chassis: HTTP 302",)
    assert reading.chassis.log.events
    assert bmc.requests.count("GET /redfish/v1/Chassis") <= 2


@pytest.mark.parametrize(
    "link", ["https://{other}/redfish/v1/Chassis/1U", "@{other}/redfish/v1/Chassis/1U", "/etc"]
)
def test_a_link_to_another_place_is_not_followed(
    bmc: FakeBmc, tmp_path: Path, certificate: Path, link: str
) -> None:
    other = FakeBmc(tmp_path / "other", certificate, make_old_tree())
    with serve(other):
        bmc.tree["Chassis"]["Members"] = [{"@odata.id": link.format(other=other.address)}]

        assert "is not a path of a Redfish service" in read(bmc).unreadable[0]

    assert other.requests == []


def test_an_answer_of_100_mb_is_not_read_to_its_end(bmc: FakeBmc) -> None:
    bmc.faults[POWER] = flood

    assert read(bmc).unreadable == (f"{POWER}: more than 8 MiB",)
    assert bmc.open_sessions == 0


@pytest.mark.parametrize(
    ("fault", "cause", "words"),
    [
        (answer_with(404), Cause.MISSING, "is not a Redfish service"),
        (answer_with(500), Cause.MISCONFIGURED, "returned HTTP 500"),
        (answer_with(503), Cause.MISCONFIGURED, "busy"),
        (answer_with(200, b"<html>"), Cause.MISCONFIGURED, "does not respond as a Redfish service"),
        (answer_with(200, b"[]"), Cause.MISCONFIGURED, "does not respond as a Redfish service"),
    ],
)
def test_a_server_that_is_no_bmc_gets_no_password(
    bmc: FakeBmc, fault: Fault, cause: Cause, words: str
) -> None:
    bmc.faults[""] = fault

    why = refuse(bmc)

    assert (why.cause, bmc.logins) == (cause, 0)
    assert words in str(why)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (answer_with(500), "HTTP 500"),
        (answer_with(200, b"<html>"), "no JSON"),
        (answer_with(200, b"[]"), "no resource"),
        (answer_with(200, b"[" * 10**6), "no JSON"),
        (break_off, "no JSON"),
    ],
)
def test_what_cannot_be_shown_is_told_and_the_rest_is_read(
    bmc: FakeBmc, fault: Fault, words: str
) -> None:
    bmc.faults[POWER] = fault

    reading = read(bmc)

    assert reading.unreadable == (f"{POWER}: {words}",)
    assert len(of_kind(reading, SensorKind.FAN)) == 3


def test_a_session_that_the_bmc_ends_ends_the_reading(bmc: FakeBmc) -> None:
    bmc.faults[THERMAL] = answer_with(401)

    assert "has ended the session" in str(refuse(bmc))
    assert bmc.logins == 1


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_bmc_without_sessions_gets_the_password_with_each_question(
    bmc: FakeBmc, status: int
) -> None:
    bmc.faults["POST SessionService/Sessions"] = answer_with(status)

    assert len(of_kind(read(bmc), SensorKind.FAN)) == 3
    assert not any(line.startswith("DELETE") for line in bmc.requests)


def test_a_wrong_password_is_tried_once_where_there_are_no_sessions(bmc: FakeBmc) -> None:
    bmc.faults["POST SessionService/Sessions"] = answer_with(404)
    bmc.password = "another"  # noqa: S105 - of a BMC that is a test

    assert refuse(bmc).cause is Cause.DENIED
    assert bmc.logins == 1


def test_a_password_that_must_be_changed_is_a_refusal_and_leaves_no_session(bmc: FakeBmc) -> None:
    def demand_change(handler: Any) -> None:
        bmc.open_sessions += 1
        body = b'{"@odata.id": "%s/1", "@Message.ExtendedInfo": [%s]}' % (
            SESSIONS.encode(),
            b'{"MessageId": "Base.1.8.PasswordChangeRequired"}',
        )
        handler.reply(201, body, X_Auth_Token=TOKEN)

    bmc.faults["POST SessionService/Sessions"] = demand_change

    assert refuse(bmc).cause is Cause.DENIED
    assert bmc.open_sessions == 0


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nowhere.invalid"])
def test_an_address_that_leads_nowhere_is_told(bmc: FakeBmc, address: str) -> None:
    with pytest.raises(Unable, match="cannot be resolved") as caught:
        read_chassis(replace(bmc.make_access(), address=address))

    assert caught.value.cause is Cause.MISCONFIGURED


def test_resources_of_the_wrong_shape_raise_nothing(bmc: FakeBmc) -> None:
    bmc.tree[THERMAL] = {"Fans": [7, {"Name": 3, "Reading": "fast", "Status": "fine"}]}
    bmc.tree[POWER] = {"PowerSupplies": "two", "Redundancy": {}}
    bmc.tree[SYSTEM] |= {"PowerState": None, "ProcessorSummary": [], "Bios": "none"}
    bmc.tree[MANAGER] = {"Id": 5, "DateTime": "yesterday"}
    bmc.tree[ENTRIES]["Members@odata.count"] = 10**400

    assert [s.health for s in of_kind(read(bmc), SensorKind.FAN)] == [SensorHealth.UNKNOWN]


def test_a_way_to_a_bmc_shows_no_password(bmc: FakeBmc) -> None:
    assert PASSWORD not in f"{bmc.make_access()} {bmc.make_access()!r}"
