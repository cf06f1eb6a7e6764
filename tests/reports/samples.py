"""
Runs to print: an 8-GPU node with every verdict, and the ends of the scale.

The figures are made up, by formulas and without chance, in the shape of real ones;
verdicts and reasons are the engine's own, from `judge`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from hpcverify.check import add_faults
from hpcverify.model import (
    Cause,
    Coverage,
    Device,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Maturity,
    Measurement,
    PairRates,
    Part,
    Remedy,
    Result,
    Run,
    Series,
    Verdict,
    verdict_of,
)
from hpcverify.summary.exclusions import Repetition
from hpcverify.testing import judge_by
from tests.doubles import add_missing_faults

STARTED = datetime(2026, 11, 21, 3, 21, tzinfo=UTC)
HOSTILE = '<script>alert("x")</script> | a\nb \x00\x1b[31m\u202e & <b>'

_TAILS = ("9a0c", "17e2", "b3d8", "4f21", "c650", "e19f", "02ab", "7d34")
GPUS = tuple(
    Part(
        kind="gpu",
        id=f"GPU-5c8e{i}b1a-1f0d-4c77-9e62-0d3a51f2{tail}",
        label=f"GPU {i} (…{tail})",
        facts={
            "name": "NVIDIA H100 80GB HBM3",
            "serial": f"16543220{i}1187",
            "pci_address": f"0000:{bus}:00.0",
            "board": "692-2G520-0200-000",
            "driver": "565.57.01",
            "vbios": "96.00.A5.00.01",
            "memory": "81559 MiB",
            "ecc": "on",
            "power limit": "700 W",
            "pcie": "gen 5 x16",
        },
    )
    for i, (tail, bus) in enumerate(
        zip(_TAILS, ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db"), strict=True)
    )
)
DISKS = tuple(
    Part(
        kind="disk",
        id=f"S64GNX0T{i}03517",
        label=f"nvme{i}n1",
        facts={"model": "SAMSUNG MZQL23T8HCLS-00A07", "firmware": "GDC5602Q"},
    )
    for i in range(2)
)
INVENTORY = Inventory(
    parts=(
        Part(
            kind="system",
            id="node",
            label="node",
            facts={
                "vendor": "Dell Inc.",
                "product": "PowerEdge XE9680",
                "serial": "J90J6Y3",
                "bios": "2.3.6",
                "kernel": "6.8.0-45-generic",
            },
        ),
        Part(
            kind="cpu",
            id="cpu",
            label="CPU",
            facts={"model": "Intel Xeon Platinum 8480+", "sockets": "2", "cores": "112"},
        ),
        Part(kind="memory", id="memory", label="Memory", facts={"total": "2048 GiB"}),
        *GPUS,
        *DISKS,
    ),
    devices=tuple(Device(kind="cuda", part=g.id, label=g.label) for g in GPUS),
    sensors=tuple(
        f"{gpu.id}/{name}"
        for name in ("clock", "fan", "memory_temperature", "power", "temperature")
        for gpu in GPUS
    ),
)
SICK = GPUS[3].id
OFTEN = {
    GPUS[5].id: Repetition(
        failed=11,
        runs=31,
        since=datetime(2026, 10, 11, 2, tzinfo=UTC),
        first=datetime(2026, 11, 11, 2, tzinfo=UTC),
    )
}
"""How often a part failed before."""
H100 = "H100 SXM5"
TIMES = "\N{MULTIPLICATION SIGN}"


def wobble(i: int, seed: float) -> float:
    """Give a value between -1 and 1 that looks like chance and is none."""
    return math.sin(12.9898 * i + 78.233 * seed) * math.cos(4.1414 * i * (seed + 1))


def result(
    check: str,
    found: Sequence[Measurement | Finding] = (),
    limits: Sequence[Limit] = (),
    rulings: Mapping[str, FindingRule] | None = None,
    **changes: Any,
) -> Result:
    """Judge what was *found* as the engine does."""
    base = judge_by(found, limits, rulings or {}, INVENTORY, check=check)
    return add_faults(replace(base, **changes), INVENTORY)


def run(*results: Result, **changes: Any) -> Run:
    """Put *results* into a run of an 8-GPU node."""
    base = Run(
        id="20261121T032100Z-n17-8c41d2",
        node="n17",
        suite="quick",
        started=STARTED,
        seconds=161.3,
        verdict=verdict_of(results),
        complete=True,
        inventory=INVENTORY,
        results=results,
        versions={
            "hpcverify": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0",
            "cuda": "12.8",
            "driver": "565.57.01",
            "nccl": "2.26.2",
            "suite quick": "sha256:1f7b3c90",
        },
    )
    return add_missing_faults(replace(base, **changes))


_PEAKS = {"bf16": 742.0, "fp16": 731.0, "tf32": 402.0, "fp32": 51.4, "fp64": 58.8}
_SPECS = {"bf16": 989.0, "fp16": 989.0, "tf32": 494.0, "fp32": 66.9, "fp64": 66.9}
_FLOOR = 0.71


def gemm(*, sick: bool = True, drift: float = 1.0) -> Result:
    """Measure matrix products; with *sick*, GPU 3 is slow at bf16 when it is hot."""
    found = list(_gemm_figures(sick=sick, drift=drift))
    limits = [
        Limit(
            name=f"{kind}.sustained",
            low=round(_FLOOR * spec, 1) * 1e3,
            source=f"{_FLOOR} {TIMES} spec {spec:g}, {H100}",
            remedy=Remedy.REPLACE,
        )
        for kind, spec in _SPECS.items()
    ]
    limits += [
        Limit(
            name="bf16.burst",
            low=0.95e3 * value,
            otherwise=Verdict.WARN,
            source=f"0.95 {TIMES} median {value:.0f} of 12 runs",
            part_id=gpu.id,
        )
        for i, gpu in enumerate(GPUS)
        for value in (_figure("bf16", i, "burst"),)
    ]
    return result(
        "gemm",
        found,
        limits,
        seconds=63.2,
        coverage=tuple(
            Coverage(gpu.id, "5 types, 14 shapes up to 16384³, 412 products") for gpu in GPUS
        ),
        params={"seconds": 30.0, "types": ["bf16", "fp16", "tf32", "fp32", "fp64"]},
    )


def _figure(kind: str, gpu: int, mode: str) -> float:
    gain = {"burst": 1.09, "sustained": 1.0}[mode]
    return _PEAKS[kind] * gain * (1 + 0.012 * wobble(gpu, len(kind) + gain))


def _gemm_figures(*, sick: bool, drift: float) -> Iterator[Measurement]:
    for i, gpu in enumerate(GPUS):
        for kind, peak in _PEAKS.items():
            for mode in ("burst", "sustained"):
                value = _figure(kind, i, mode) * drift
                slow = sick and gpu.id == SICK and (kind, mode) == ("bf16", "sustained")
                value = 612.0 if slow else value
                yield Measurement(f"{kind}.{mode}", value * 1e3, "GFLOP/s", gpu.id)
            spread = 0.8 + 0.3 * abs(wobble(i, peak))
            yield Measurement(f"{kind}.spread", spread, "%", gpu.id)


_RAILS = {
    "temperature": ("°C", 34.0, 67.0),
    "memory_temperature": ("°C", 40.0, 79.0),
    "clock": ("MHz", 1980.0, 1755.0),
    "power": ("W", 74.0, 689.0),
    "utilization": ("%", 0.0, 99.0),
    "fan": ("%", 38.0, 71.0),
}


def telemetry(samples: int = 600) -> tuple[Series, ...]:
    """Sample six rails of eight GPUs, one reading a second; GPU 3 throttles once."""
    return tuple(
        Series(
            name=name,
            unit=unit,
            part_id=gpu.id,
            t=tuple(float(t) for t in range(samples)),
            values=tuple(_sample(name, i, t, idle, hot) for t in range(samples)),
        )
        for name, (unit, idle, hot) in _RAILS.items()
        for i, gpu in enumerate(GPUS)
    )


def _sample(name: str, gpu: int, t: int, idle: float, hot: float) -> float:
    rise = 1 - math.exp(-max(t - 20, 0) / 55)
    own = 0.035 * (hot - idle) * wobble(gpu, 1.7)
    value = idle + (hot - idle) * rise + own + 0.012 * hot * wobble(t, gpu)
    if GPUS[gpu].id == SICK:
        value += {"temperature": 15.0, "memory_temperature": 9.0}.get(name, 0.0) * rise
        if name == "clock" and t == 412:
            return 345.0
    return round(min(max(value, 0.0), 100.0) if name == "utilization" else value, 1)


def thermal(samples: int = 600) -> Result:
    """Watch a soak: GPU 3 runs hot and throttles, and the fans cannot be read."""
    found: list[Measurement | Finding] = []
    for i, gpu in enumerate(GPUS):
        hot = 15.0 if gpu.id == SICK else 0.0
        found += [
            Measurement("temperature.max", 68.2 + hot + wobble(i, 1.7), "°C", gpu.id),
            Measurement("clock.mean", 1755 + 9 * wobble(i, 2.2), "MHz", gpu.id),
            Measurement("power.mean", 688 + 4 * wobble(i, 5.0), "W", gpu.id),
            Measurement("throttled.thermal", 1.0 if hot else 0.0, "s", gpu.id),
            Measurement("throttled.power", 31.0 + i, "s", gpu.id),
        ]
    limits = (
        Limit(name="temperature.max", high=87.0, source=f"maximum of {H100}"),
        Limit(
            name="throttled.thermal", high=0.0, otherwise=Verdict.WARN, source="hpcverify default"
        ),
    )
    return result(
        "thermal",
        found,
        limits,
        seconds=600.4,
        series=telemetry(samples),
        coverage=(Coverage("node", "600 s at full load on all 8 GPUs at once"),),
        params={"seconds": 600.0, "load": "bf16", "interval": 1.0},
    )


def sdc() -> Result:
    """Find one corrupted word on GPU 3."""
    finding = Finding(
        code="corrupted_word",
        part_id=SICK,
        text="1 word of 1.2e13 differs from its exact product",
        evidence={
            "seed": "0x9b3f2d11",
            "operation": "bf16 GEMM 8192³, tile (37, 112), product 18211",
            "expected": "0x41a80000 (21.0)",
            "read": "0x41a80400 (21.0078)",
            "flipped": "bit 10",
        },
    )
    checked = [Measurement("checked", 1.2e13, "", g.id) for g in GPUS]
    return result(
        "sdc",
        [finding, *checked],
        (Limit(name="checked", low=1e9, source="hpcverify default"),),
        {"corrupted_word": FindingRule(Verdict.FAIL, Remedy.REPLACE)},
        seconds=44.0,
        coverage=tuple(
            Coverage(g.id, "1.2e13 words in 18 400 products of known result") for g in GPUS
        ),
    )


def ecc() -> Result:
    """Count memory errors: all is well."""
    names = ("dram.corrected", "dram.uncorrected", "sram.uncorrected", "rows.pending")
    found = [Measurement(name, 0.0, "", g.id) for g in GPUS for name in names]
    limits = [Limit(name=name, high=0.0, source="hpcverify default") for name in names]
    return result("ecc", found, limits, seconds=0.2, coverage=tuple(_list_coverage()))


def _list_coverage() -> Iterator[Coverage]:
    """List what NVML let us read: the same on most GPUs, less on some."""
    for i, gpu in enumerate(GPUS):
        yield Coverage(gpu.id, "21 counters of memory errors read since the last run")
        action = {2: "gpu reset", 5: "drain and reset"}.get(i, "none")
        yield Coverage(gpu.id, f"recovery action: {action}")
    calls = (f"nvmlDeviceGetFieldValues({n}) of a link" for n in (29, 30, 303, 307))
    yield Coverage("node", f"all GPUs: not supported: {', '.join(calls)}")


def allreduce() -> Result:
    """Fail to start: a library is missing."""
    return Result(
        check="allreduce",
        verdict=Verdict.ERROR,
        reason="libnccl.so.2 is not installed: pip install nvidia-nccl-cu12",
        cause=Cause.MISSING,
        remedy=Remedy.FIX_CONFIGURATION,
        required=True,
        seconds=1.4,
    )


def storage() -> Result:
    """Measure two disks, one of them slow to flush, one value not a number."""
    found: list[Measurement] = []
    for i, disk in enumerate(DISKS):
        found += [
            Measurement("fsync.p99", 1.9 + 11.2 * i, "ms", disk.id),
            Measurement("fsync.p50", 0.4 + 0.1 * i, "ms", disk.id),
            Measurement("read.sequential", 6.41 - 0.2 * i, "GB/s", disk.id),
            Measurement("write.sequential", 3.87 - 0.1 * i, "GB/s", disk.id),
            Measurement("read.iops", None if i else 812000.0, "1/s", disk.id),
        ]
    limits = (
        Limit(
            name="fsync.p99", high=10.0, otherwise=Verdict.WARN, source="/etc/hpcverify/site.toml"
        ),
        Limit(name="read.sequential", low=5.0, high=8.0, source="hpcverify default"),
    )
    return result("storage", found, limits, seconds=21.7)


def inventory() -> Result:
    """Compare the parts with the last run's: nothing changed."""
    found = [Measurement("gpus", 8.0), Measurement("disks", 2.0)]
    limits = (Limit(name="gpus", low=8.0, high=8.0, source="/etc/hpcverify/site.toml"),)
    return result("inventory", found, limits, seconds=0.1)


def edac() -> Result:
    """Find no sensor."""
    return Result(
        check="edac",
        verdict=Verdict.SKIP,
        reason="no memory controller reports errors in /sys/devices/system/edac",
        cause=Cause.NOT_OBSERVABLE,
    )


def sick_node(samples: int = 600) -> Run:
    """Verify a node with every verdict in it."""
    checks = inventory(), gemm(), sdc(), thermal(samples), ecc(), allreduce(), storage(), edac()
    return run(*checks, seconds=731.0)


def worn_node(rounds: int = 3) -> Run:
    """Burn a node in that passes, warns in its second round and fails in its last."""
    parts = [
        (inventory(), gemm(sick=n == rounds), ecc(), _soaked(warns=n == 2))
        for n in range(1, rounds + 1)
    ]
    results = [replace(r, round=n) for n, some in enumerate(parts, 1) for r in some]
    return run(*results, suite="burnin", rounds=12, left_out=f"round {rounds} failed")


def _soaked(*, warns: bool) -> Result:
    whole = thermal(10)
    return whole if warns else replace(whole, verdict=Verdict.PASS, limits=())


def well_node() -> Run:
    """Verify a node on which all is well."""
    return run(inventory(), gemm(sick=False), ecc())


def healthy_node() -> Run:
    """Verify a node on which all is well, with everything that a page can draw."""
    hot = thermal(60)
    soaked = replace(hot, faults=(), reason="", verdict=Verdict.PASS, limits=hot.limits[:1])
    checks = inventory(), gemm(sick=False), soaked, ecc(), bandwidth(), pairs(), training(), edac()
    return run(*checks, seconds=731.0)


def bandwidth() -> Result:
    """Reduce messages of several sizes; the largest ones reach what the switches can."""
    sizes = {"1MiB": 92.0, "16MiB": 287.0, "128MiB": 401.0, "1GiB": 446.0, "8GiB": 462.0}
    found = [Measurement(f"busbw.{size}", rate, "GB/s") for size, rate in sizes.items()]
    found.append(Measurement("nvls.busbw", 462.0, "GB/s"))
    limits = [
        Limit(name=f"busbw.{size}", low=0.7 * rate, otherwise=Verdict.WARN, source="12 runs")
        for size, rate in sizes.items()
    ]
    floor = Limit(name="nvls.busbw", low=312.0, source="0.65 of 480 GB/s, H100 SXM5")
    return result("allreduce", found, (*limits, floor), seconds=9.2)


def pairs(slow: int | None = None) -> Result:
    """Copy between every two GPUs; the GPU *slow* sends at 70 %."""
    rates = tuple(
        tuple(
            None if i == j else 391.0 * (0.7 if i == slow else 1) + wobble(i, j + 0.3)
            for j in range(len(GPUS))
        )
        for i in range(len(GPUS))
    )
    table = PairRates("GB/s", tuple(gpu.id for gpu in GPUS), rates)
    found = [
        Measurement("p2p.write", rates[i][i - 1] or 0.0, "GB/s", g.id) for i, g in enumerate(GPUS)
    ]
    limit = Limit(name="p2p.write", low=342.0, source="0.9 of 380 GB/s, H100 SXM5")
    covered = (Coverage("node", "56 pairs: 64 MiB compared bit by bit on each", table),)
    return result("p2p", found, (limit,), seconds=7.4, coverage=covered)


def training() -> Result:
    """Train a small model on all GPUs; a step in twenty takes longer."""
    found = [
        Measurement(f"step_{name}", (41.2 + 0.4 * wobble(i, 3.1)) * gain, "ms", gpu.id)
        for i, gpu in enumerate(GPUS)
        for name, gain in (("p50", 1.0), ("p95", 1.06))
    ]
    return result("training", found, seconds=31.0)


def torn_node() -> Run:
    """Verify a node whose GPU 5 must be replaced and GPU 2 reset; GPU 1 warns."""
    limits = (
        Limit(name="remap.failed", high=0, remedy=Remedy.REPLACE, source="NVIDIA"),
        Limit(name="rate", high=1, otherwise=Verdict.WARN, source="hpcverify default"),
    )
    found = [
        measured
        for i, gpu in enumerate(GPUS)
        for measured in (
            Measurement("remap.failed", float(i == 5), "", gpu.id),
            Measurement("rate", 9.0 * (i in (1, 5)), "1/s", gpu.id),
        )
    ]
    reset = Finding("gpu_reset", GPUS[2].id, "the driver asks to reset it")
    return run(
        result(
            "recovery",
            [reset],
            (),
            {"gpu_reset": FindingRule(Verdict.FAIL, Remedy.RESET_GPU)},
            coverage=tuple(Coverage(gpu.id, "recovery action") for gpu in GPUS),
        ),
        result("ecc", found, limits),
    )


def past(count: int = 12) -> list[Run]:
    """List the runs of the nights before, in which bf16 fades slowly."""
    return [
        replace(
            run(inventory(), gemm(sick=False, drift=1 - 0.001 * i + 0.004 * wobble(i, 0.7)), ecc()),
            id=f"20261109T0321-{i}",
            started=STARTED - timedelta(days=count - i),
        )
        for i in range(count)
    ]


def odd_node() -> Run:
    """Verify a node by checks each of which shows a rule of the page."""
    lost = Finding("gone", "GPU-1", "it is gone", {"was": "GPU 2", "board": "692"})
    down = Finding("down", GPUS[5].id, "a link is down")
    noted = Finding("noted", GPUS[4].id, "a link has errors")
    slow = Measurement("rate", 9.0, "1/s", GPUS[1].id)
    mild = Limit(name="rate", high=1, otherwise=Verdict.WARN, source="default")
    low = Limit(name="rate", low=100.0, source="site.toml")
    counts = {"row.a": 0, "row.b": 0, "free": 0, "moved": 7}
    rulings = {
        "gone": FindingRule(Verdict.FAIL, Remedy.REBOOT),
        "down": FindingRule(Verdict.FAIL),
        "noted": FindingRule(Verdict.PASS),
    }
    disks = tuple(f"{disk.id}/temperature" for disk in DISKS)
    capable = Part("gpu", "GPU-9", "GPU 9", {"compute_capability": "9.0", "pci_address": "0:1.0"})
    return run(
        # A part that is gone is called what it was called.
        result("inventory", [lost], (), rulings),
        # Failures come before warnings, though one is a finding and the other a measurement.
        result("nvlink", [noted, slow, down], (mild,), rulings),
        # Of one verdict, what is farthest past its limit comes first; no number is the worst.
        result(
            "cores",
            [Measurement("rate", v, "1/s", GPUS[i].id) for i, v in enumerate((95, 40, None, 80))],
            [low],
        ),
        # Many parts make a row each.
        result("clocks", [Measurement("clock", 3000.0 + i, "MHz", f"cpu{i}") for i in range(17)]),
        # A limit that nothing met is a fault.
        result("fp8", [], [Limit(name="fp8.sustained", low=1.0, source="site.toml")]),
        # A value that is not a number is called so.
        result(
            "storage",
            [Measurement("latency", None, "ms"), Measurement("latency.max", None)],
            [Limit(name="latency", high=1.0, source="site.toml")],
        ),
        # A noisy limit cannot judge.
        result(
            "noisy",
            [Measurement("rate", 3.0, "1/s")],
            [Limit(name="rate", low=1.0, source="baseline", noisy="spread 40 %")],
        ),
        # A failure in beta is a warning, a required skip an error; each says so.
        result("young", [slow], [low], maturity=Maturity.BETA),
        replace(edac(), required=True),
        # Rows of zeros are one list, with their limits; columns are in the order of the indexes.
        result(
            "zeros",
            [
                Measurement(name, value * (gpu.id == SICK), "", gpu.id)
                for name, value in counts.items()
                for gpu in reversed(GPUS)
            ],
            [Limit(name="row.*", high=0.0, source="the data sheet")],
        ),
        # Coverage names several parts in few words; a ratio has no unit.
        result(
            "links",
            [Measurement("jitter", 4.44, "ratio")],
            coverage=tuple(
                Coverage(gpu.id, text)
                for i, gpu in enumerate(GPUS)
                for text in ("links: 18", f"reset: {'no' if i in (0, 1, 3, 4, 7) else i}")
            ),
        ),
        # Sensors are listed with the parts that have them; facts bear the names in use.
        inventory=replace(
            INVENTORY, parts=(*INVENTORY.parts, capable), sensors=(*disks, f"{SICK}/power")
        ),
    )


def quick_node() -> Run:
    """Verify a node that passes: its numbers are above the fold."""
    found = [
        measured
        for i, gpu in enumerate(GPUS)
        for measured in (
            Measurement("bf16.sustained", 742e3 - 1e3 * i, "GFLOP/s", gpu.id),
            Measurement("bf16.of_peak", 0.75 - 0.01 * i, "ratio", gpu.id),
        )
    ]
    return run(result("gemm", found))
