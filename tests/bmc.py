"""
A BMC that is a program: OpenIPMI's ``ipmi_sim`` on the loopback, asked by the real FreeIPMI.

Its sensors are records as IPMI 2.0 writes them (section 43), its states and its event log are
changed while it runs, and tools on the PATH send to it what would go to /dev/ipmi0.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcverify.processes import make_death_request
from tests.waiting import PATIENCE_S

OWNER, PASSWORD = "admin", "admin"
START_SECONDS = 300.0
TOOLS = ("bmc-info", "bmc-device", "ipmi-sel", "ipmi-sensors")
THRESHOLD, SPECIFIC, REDUNDANCY, SEVERITY = 0x01, 0x6F, 0x0B, 0x07
"""Event types (table 42-1)."""
TEMPERATURE, VOLTAGE, FAN, PROCESSOR, SUPPLY, UNIT = 0x01, 0x02, 0x04, 0x07, 0x08, 0x09
MEMORY, DRIVE, INTERRUPT, BATTERY, EVENT_LOGGING = 0x0C, 0x0D, 0x13, 0x29, 0x10
COOLING = 0x0A
"""Sensor types (table 42-3)."""
CELSIUS, VOLTS, RPM = 1, 4, 18


@dataclass(frozen=True, slots=True)
class SimulatedSensor:
    """A sensor; *bounds* are raw: upper nr, critical, nc, lower nr, critical, nc; 0 is none."""

    name: str
    number: int
    type: int
    entity: tuple[int, int] = (7, 1)
    value: int | None = None
    bits: tuple[int, ...] = ()
    bounds: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
    unit: int = 0
    multiplier: int = 1
    exponent: int = 0
    event_type: int = THRESHOLD
    has_zero_bounds: bool = False
    """Whether all bounds count, and none is missing."""

    @property
    def record(self) -> list[int]:
        """Its record in the SDR, full or compact."""
        name = [0xC0 | len(self.name), *self.name.encode()]
        who = [0x20, 0, self.number, *self.entity, 0x7F]
        if self.event_type == THRESHOLD:
            mask = self.mask
            factors = [self.multiplier & 0xFF, (self.multiplier >> 8) << 6, 0, 0, 0]
            exponents = (self.exponent & 0xF) << 4
            body = [
                *(*who, 0x6C, self.type, THRESHOLD, 0, 0, 0, 0, mask, mask),
                *(0, self.unit, 0, 0, *factors, exponents, 0, 0, 0, 0, 255, 0),
                *(*self.bounds, 1, 1, 0, 0, 0, *name),
            ]
            return [0, 0, 0x51, 1, len(body), *body]
        body = [
            *(*who, 0x40, self.type, self.event_type, 0xFF, 1, 0xFF, 1, 0xFF, 1),
            *(0xC0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, *name),
        ]
        return [0, 0, 0x51, 2, len(body), *body]

    @property
    def mask(self) -> int:
        """Which bounds it has: bit 0 is lower nc, bit 5 upper nr."""
        if self.has_zero_bounds:
            return 0b111111
        order = (*reversed(self.bounds[:3]), *reversed(self.bounds[3:]))
        places = (3, 4, 5, 0, 1, 2)
        return sum(1 << place for place, bound in zip(places, order, strict=True) if bound)


def a_fan(number: int) -> SimulatedSensor:
    """Make a fan that turns at 9000 RPM: a warning below 700, critical below 500."""
    return SimulatedSensor(
        *(f"FAN{number}", 0x40 + number, FAN, (29, number), 90),
        bounds=(0, 0, 0, 3, 5, 7),
        unit=RPM,
        multiplier=100,
    )


def a_supply(number: int, *bits: int) -> SimulatedSensor:
    """Make the status of a power supply; bit 0 says that it is there."""
    name = f"PS{number} Status"
    return SimulatedSensor(name, 0x50 + number, SUPPLY, (10, number), None, bits, event_type=0x6F)


def a_temperature(
    name: str, number: int, value: int, warning: int, critical: int
) -> SimulatedSensor:
    """Make a sensor in °C with upper thresholds."""
    entity = (55, 1) if "Inlet" in name else (3, 1)
    bounds = (critical + 5, critical, warning, 0, 0, 0)
    return SimulatedSensor(name, number, TEMPERATURE, entity, value, bounds=bounds, unit=CELSIUS)


def a_voltage(name: str, number: int, tenths: int, lowest: int) -> SimulatedSensor:
    """Make a sensor in steps of 0.1 V with lower thresholds."""
    bounds = (0, 0, 0, lowest - 2, lowest - 1, lowest)
    return SimulatedSensor(
        *(name, number, VOLTAGE, (7, 1), tenths), bounds=bounds, unit=VOLTS, exponent=-1
    )


def a_state(
    name: str, number: int, kind: int, *bits: int, event_type: int = SPECIFIC
) -> SimulatedSensor:
    return SimulatedSensor(name, number, kind, (7, number), None, bits, event_type=event_type)


HEALTHY: tuple[SimulatedSensor, ...] = (
    a_temperature("CPU1 Temp", 0x01, 45, 90, 95),
    a_temperature("Inlet Temp", 0x02, 24, 38, 42),
    *(a_fan(number) for number in (1, 2, 3, 4)),
    SimulatedSensor("FAN5", 0x45, FAN, (29, 5), unit=RPM, multiplier=100),
    *(a_supply(number, 0) for number in (1, 2, 3, 4)),
    a_supply(5),
    a_state("PS Redundancy", 0x60, UNIT, 0, event_type=REDUNDANCY),
    a_state("Fan Redundancy", 0x65, FAN, 0, event_type=REDUNDANCY),
    a_voltage("VBAT", 0x61, 31, 26),
    a_voltage("12V", 0x62, 121, 112),
    a_state("CPU1 Status", 0x63, PROCESSOR, 7),
    a_state("Drive 1", 0x64, DRIVE, 0),
    a_state("Leak_Det_0", 0x66, COOLING, 0, event_type=SEVERITY),
)
"""A node with an empty bay for a power supply and an empty slot for a fan."""


class SimulatedBmc:
    """A running ``ipmi_sim``; *program* is a folder for the PATH that leads FreeIPMI to it."""

    def __init__(
        self, folder: Path, sensors: Iterable[SimulatedSensor] = HEALTHY, guid: int = 1
    ) -> None:
        """Start it with files below *folder*, and wait until it answers."""
        self.folder = folder
        self.records = tuple(sensors)
        self.sensors = {sensor.name: sensor for sensor in self.records}
        self.guid = f"{guid:02x}23456789abcdef0123456789abcdef"
        self.clock = time.time()
        self.port = _find_free_port()
        self.console_port = _find_free_port()
        self.program = folder / "bin"
        self.program.mkdir(parents=True)
        self._write_program()
        self.start()

    def _write_program(self) -> None:
        """Write the tools, which replace the two options that name the driver and its device."""
        # The simulator drops the first request of a session, so that the tool sends it again.
        lan = (
            f"-h 127.0.0.1:{self.port} -D LAN -u {OWNER} -p {PASSWORD} -l ADMIN "
            "--session-timeout=20000 --retransmission-timeout=50"
        )
        for name in TOOLS:
            real = shutil.which(name, path="/usr/sbin:/usr/bin")
            assert real, "apt-get install freeipmi-tools openipmi"
            tool = self.program / name
            tool.write_text(f'#!/bin/sh\nshift 2\nexec {real} {lan} "$@"\n')
            tool.chmod(0o755)

    def start(self) -> None:
        """Start the program anew, with an empty log."""
        (self.folder / "state").mkdir(exist_ok=True)
        (self.folder / "lan.conf").write_text(
            f'name "bmc"\nset_working_mc 0x20\nstartlan 1\naddr 127.0.0.1 {self.port}\n'
            "priv_limit admin\nallowed_auths_admin none md2 md5 straight\n"
            f"guid {self.guid}\nendlan\n"
            f'user 2 true "{OWNER}" "{PASSWORD}" admin 10 none md2 md5 straight\n'
            f"console 127.0.0.1 {self.console_port}\n"
        )
        (self.folder / "bmc.emu").write_text("\n".join(self._list_commands()) + "\n")
        command = ["ipmi_sim", "-c", "lan.conf", "-f", "bmc.emu", "-s", "state", "-n", "-p"]
        with (self.folder / "sim.log").open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=make_death_request(os.getpid()),  # noqa: PLW1509
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "sim.log").read_text()
            try:
                self.console = socket.create_connection(("127.0.0.1", self.console_port), 10)
            except ConnectionRefusedError:
                time.sleep(0.02)
                continue
            self._read_prompts(1)
            return
        raise AssertionError("ipmi_sim does not answer")

    def _list_commands(self) -> Iterable[str]:
        yield "mc_setbmc 0x20"
        yield "mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x2a7c 0x0b00"
        yield "sel_enable 0x20 1000 0x0a"
        yield "sensor_add 0x20 0 0 35 0x6f event-only"
        states = "111111111111111"
        for sensor in self.records:
            place = f"0x20 0 {sensor.number}"
            yield f"sensor_add {place} {sensor.type} {sensor.event_type}"
            if sensor.event_type == THRESHOLD:
                bounds = " ".join(map(str, sensor.bounds))
                yield f"sensor_set_threshold {place} settable {sensor.mask:06b} {bounds}"
            support = " ".join(
                [states if sensor.event_type != THRESHOLD else states[:12].rjust(15, "0")] * 4
            )
            yield f"sensor_set_event_support {place} enable scanning per-state {support}"
            yield from self._list_states(sensor)
            yield f"main_sdr_add 0x20 {' '.join(map(hex, sensor.record))}"
        yield "mc_enable 0x20"

    def _list_states(self, sensor: SimulatedSensor, *, log: bool = False) -> Iterable[str]:
        place = f"0x20 0 {sensor.number}"
        if sensor.value is not None:
            yield f"sensor_set_value {place} {sensor.value} {int(log)}"
        elif sensor.event_type != THRESHOLD:
            yield from (
                f"sensor_set_bit {place} {bit} {int(bit in sensor.bits)} {int(log)}"
                for bit in range(8)
            )

    def tell(self, *commands: str) -> None:
        self.console.sendall("".join(f"{command}\n" for command in commands).encode())
        self._read_prompts(len(commands))

    def _read_prompts(self, count: int) -> None:
        said = b""
        while said.count(b"> ") < count:
            more = self.console.recv(65536)
            assert more, f"ipmi_sim has ended: {(self.folder / 'sim.log').read_text()}"
            said += more
        assert b"**" not in said, said

    def set_value(self, name: str, raw: int, *, log: bool = False) -> None:
        """Have the sensor *name* read *raw*; *log* what that crosses."""
        self.tell(f"sensor_set_value 0x20 0 {self.sensors[name].number} {raw} {int(log)}")

    def set_bits(self, name: str, *bits: int, log: bool = False) -> None:
        """Have the sensor *name* assert just *bits*."""
        shown = replace(self.sensors[name], bits=bits)
        self.tell(*self._list_states(shown, log=log))

    def add_event(
        self,
        kind: int,
        offset: int,
        number: int = 0x99,
        *,
        event_type: int = SPECIFIC,
        over: bool = False,
    ) -> None:
        """Log an event of sensor *number*; *over* for one that ends."""
        way = event_type | (0x80 if over else 0)
        data: Sequence[int] = (0, 0, 0, 0, 0x20, 0, 4, kind, number, way, offset, 0xFF, 0xFF)
        self.tell(f"sel_add 0x20 2 {' '.join(map(str, data))}")

    def ask(self, tool: str, *words: str) -> None:
        subprocess.run(
            [self.program / tool, "", "", *words],
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
            env=os.environ | {"TZ": "UTC"},
        )

    def heal(self) -> None:
        """Make all sensors healthy, set the clock, and empty the log."""
        self.tell(*(c for sensor in self.records for c in self._list_states(sensor)))
        self.clock += 3600  # no entry has the time of an earlier one
        self.ask("ipmi-sel", "--clear")
        self.set_clock()

    def set_clock(self) -> None:
        moment = time.strftime("%m/%d/%Y - %H:%M:%S", time.gmtime(self.clock))
        self.ask("bmc-device", f"--set-sel-time={moment}")

    def restart(self) -> None:
        """Start it anew: its log is empty, and its clock is not set."""
        self.close()
        self.start()

    def stop(self) -> None:
        """Freeze it: it answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.console.close()
        self.process.kill()
        self.process.wait()


def _find_free_port() -> int:
    """Find a port that is free for UDP and for TCP."""
    while True:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream,
        ):
            stream.bind(("127.0.0.1", 0))
            port: int = stream.getsockname()[1]
            try:
                datagrams.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
