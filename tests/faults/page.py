"""Writes docs/faults.md from the table: ``python -m tests.faults.page``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from hpcverify.model import Verdict
from hpcverify.telemetry.cuda_errors import CudaError, load_rows
from hpcverify_checks.kernel_log import lines
from tests.checks import chassis_faults
from tests.checks.chassis_faults import CHASSIS_FAULTS, ChassisFault
from tests.checks.nic_faults import HUNG, PORT_FAULTS, PortFault
from tests.faults.table import LOADED, PASSIVE, Fault
from tests.rehearsal.table import REHEARSED, Rehearsed

PAGE = Path(__file__).parents[2] / "docs/faults.md"
HEAD = """\
# What becomes of each fault

Every fault that our NVML double can inject into a board of eight healthy H100, and
the verdict that hpcverify gives.
A test in `tests/faults/` holds each row: the real `nvidia-ml-py` reads a scenario of
`tests/nvml_lab/`, and the run must end in this verdict, for the right reason, with
this remedy. `make faults` writes this page.

The reverse is tested too: a healthy board of any part in the data sheets gets no
complaint, idle or under load, while its counters move as they do on healthy boards.
The same holds for some parts that are in no data sheet (`tests/faults/test_health.py`).

Xids have one row each in `xids.csv`, beside the check `xid`;
[other lines of the kernel](#told-by-the-kernel) and
[CUDA's errors](#errors-of-cuda-and-hip) are at the end.

## What to do

A GPU is named `GPU 3 (…4f21)`: its number in `nvidia-smi`, and the end of its UUID, which
stays when numbers change.

| verdict | may the node stay in service? |
|---|---|
| FAIL | no: drain it. The hardware is bad |
| ERROR | not known: do what the reason says, and verify it again before a long job |
| WARN | yes: look at it when the node is free |

| remedy | what to do |
|---|---|
| rerun | run the check again; inspect the part if it says the same |
| fix configuration | the hardware is not accused: the reason ends in the setting or the command |
| inspect | seating, cables, cooling, kernel log: does the fault move with the part? |
| reset gpu | drain; when nothing uses it, `nvidia-smi --gpu-reset -i 3`; if refused, reboot |
| reboot | drain and reboot; if the fault is back, switch power off and on, then the vendor |
| replace | drain the node; the report is the evidence for the vendor |
| contact vendor | drain the node if it failed; send the report |
"""
CUDA_HEAD = """\
## Errors of CUDA and HIP

A GPU that dies under load raises an error of CUDA in the check that loads it. All checks
look it up in one table, `hpcverify/telemetry/cuda_errors.csv`, which has the source of
each row and the exact fix; `tests/run/test_cuda_failure.py` holds each row.

- FAIL: the GPU is named, with its Xids of that time from the kernel log and NVML. What only
  hardware causes (ECC, NVLink) no rerun takes back.
- What software can cause too fails a GPU only if not all GPUs of the node raise it. If all
  do, the verdict is ERROR `misconfigured`: a driver or a torch that is wrong for the node.
  If the error is 999, unknown, the driver has failed: ERROR `crashed`, reboot.
- A GPU that met the error of a peer over NVLink, while that peer failed, is a witness: ERROR,
  rerun.
- A check that uses several GPUs in one process (`p2p`) names the one whose context is
  broken, or the one with an Xid. Without either it accuses no GPU.
- A message that is not in the table is ERROR `crashed`, inspect; it is never taken for a
  fault of the check.
- The process that met a sticky error is ended, and the next check gets a new one.

| error | message | verdict | cause | remedy | software can cause it |
|---|---|---|---|---|---|\
"""
KERNEL_HEAD = """\
## Told by the kernel

What `kernel_log` makes of the lines that the kernel wrote since the last run. The table
`lines.csv`, beside the check, has the pattern of each, its source in the kernel, the exact
fix, and the lines that look alike and are no fault. `tests/checks/test_kernel_log.py` holds
each row, by lines of several kernels, and 12,000 ordinary lines against all of them.

- What a user's program provokes, as a job that ran out of memory, is told and accuses nobody.
- A FAIL marked hard is evidence that no rerun takes back. Any other is of a part that the rerun
  meets again if it still fails. An older line never fails again; what failed stays a WARN for a
  day, or until the node is rebooted.
- Corrected errors are listed, and warn from ten in one look. `ecc` and `pcie` judge their rates.
- A server that answers again is only listed.
- The lines of images in files (`loop`), of memory and of empty drives count for nothing.
- GPFS writes to its own log and as a daemon to syslog, never as the kernel: `host` looks at
  its mounts. [coverage.md](coverage.md#what-other-tools-look-for) has the rules of other tools.

| what the kernel tells | finding | verdict | remedy | hard |
|---|---|---|---|---|\
"""
SECTIONS = (
    ("Before and after a job (suites `prolog` and `epilog`)", PASSIVE),
    ("Under load (the other suites)", LOADED),
)
PORTS_HEAD = """\
## Ports of the network (check `nic`)

On the files of a node with eight InfiniBand and two RoCE ports, an hour after a run in which
all was well; `tests/checks/test_nic.py` holds each row. Healthy H100 and GB200 nodes, VMs of
four clouds and a laptop get no complaint.

| fault | verdict | cause | remedy |
|---|---|---|---|\
"""
CHASSIS_HEAD = """\
## The chassis (check `chassis`)

Shown and logged by a simulated BMC, OpenIPMI's `ipmi_sim`, that the real ipmitool asks, in the
run after one in which all was well; `tests/checks/test_chassis.py` holds each row. The first
run on a node takes the events of one day. Forms of healthy machines of Dell, HPE, Lenovo,
Cisco, Supermicro and NVIDIA get no complaint (`tests/telemetry/test_ipmi.py`). The table
`events.csv`, beside the check, has all events that count.

| fault | verdict | cause | remedy |
|---|---|---|---|\
"""
REHEARSED_HEAD = """\
## Told by CUDA

Wrong products, slow kernels, errors of kernels, hangs, lost ranks: what only CUDA tells of
is rehearsed. The real `hpcverify run` runs the checks on a node whose NVML is the double
and whose CUDA is a CPU (`tests/rehearsal/`), and `tests/rehearsal/test_faults.py` holds
each row: verdict, cause, remedy, and which GPU is named.

A rehearsal proves that the Python of a check runs to its end and judges as it should. It
proves nothing of kernels, cuBLAS, NCCL, caches, power or PCIe. Healthy nodes are rehearsed
too: each check accuses nobody on H100, H200, A100, L40S and B200.

| fault | check | verdict | cause | remedy |
|---|---|---|---|---|\
"""


def page() -> str:
    faults = (line for s in SECTIONS for line in _section(*s))
    rehearsed = (line for fault in REHEARSED for line in _format_rehearsed(fault))
    return "\n".join(
        [
            HEAD,
            *faults,
            PORTS_HEAD,
            *map(_format_fault, (*PORT_FAULTS, HUNG)),
            "",
            CHASSIS_HEAD,
            *map(_format_fault, (*CHASSIS_FAULTS, chassis_faults.FULL, chassis_faults.HUNG)),
            "",
            REHEARSED_HEAD,
            *rehearsed,
            "",
            KERNEL_HEAD,
            *(_format_line(row) for row in lines.load_rows().values() if not row.ends),
            "",
            CUDA_HEAD,
            *map(_format_error, load_rows()),
            "",
        ]
    )


def _format_rehearsed(fault: Rehearsed) -> Iterator[str]:
    """Give a line for each outcome, with the checks that have it."""
    outcomes: dict[tuple[str, str, str], list[str]] = {}
    for one in fault.expected:
        remedy = one.remedy.value.replace("_", " ")
        outcome = (one.verdict.name, one.cause.value, remedy)
        outcomes.setdefault(outcome, []).append(f"`{one.check}`")
    for outcome, checks in outcomes.items():
        yield f"| {fault.name} | {', '.join(checks)} | {' | '.join(outcome)} |"


def _format_line(row: lines.LineRow) -> str:
    remedy = row.remedy.value.replace("_", " ") if row.verdict is not Verdict.PASS else ""
    conclusive = "yes" if row.conclusive else ""
    return f"| {row.meaning} | `{row.code}` | {row.verdict.name} | {remedy} | {conclusive} |"


def _format_error(row: CudaError) -> str:
    name = f"{row.number} {row.name}" if row.number else row.name
    told = row.message or ", ".join(row.phrases)
    remedy = row.remedy.value.replace("_", " ")
    software = "yes" if row.verdict is Verdict.FAIL and row.software else ""
    return f"| {name} | {told} | {row.verdict.name} | {row.cause} | {remedy} | {software} |"


def _section(title: str, faults: Sequence[Fault]) -> Iterator[str]:
    yield f"## {title}\n"
    for check, rows in groupby(sorted(faults, key=_by_check), key=_by_check):
        yield f"### `{check}`\n"
        yield "| fault | verdict | cause | remedy |"
        yield "|---|---|---|---|"
        for fault in rows:
            yield _format_fault(fault)
        yield ""


def _format_fault(fault: Fault | PortFault | ChassisFault) -> str:
    remedy = fault.remedy.value.replace("_", " ")
    return f"| {fault.name} | {fault.verdict.name} | {fault.cause} | {remedy} |"


def _by_check(fault: Fault) -> str:
    return fault.check


if __name__ == "__main__":
    PAGE.write_text(page())
