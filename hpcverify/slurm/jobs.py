"""
Parses Slurm's answers about jobs into `Job`.

From text: a job's JSON has 10 kB and changes with the version, while these columns do
not. Only one user's jobs are queried: another's job name may contain a line break and
forge a row.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcverify.slurm import Job

SQUEUE_COLUMNS = (
    *("JobID", "State", "NodeList", "StartTime", "EndTime"),
    *("PreemptTime", "exit_code", "Reason", "Name"),
)
"""squeue's columns, each printed in full and followed by ``|``."""

SACCT_COLUMNS = (
    *("JobIDRaw", "State", "NodeList", "Start", "End"),
    *("ExitCode", "Reason", "JobName"),
)
"""sacct's columns: it has no time of preemption, but keeps that state."""


def from_squeue(printed: str, prefix: str) -> dict[int, Job]:
    """Parse rows of `SQUEUE_COLUMNS` into the jobs whose name starts with *prefix*."""
    return _parse_jobs(printed, SQUEUE_COLUMNS, prefix)


def from_sacct(printed: str, prefix: str) -> dict[int, Job]:
    """Parse rows of `SACCT_COLUMNS` into the jobs whose name starts with *prefix*."""
    renamed = {"JobIDRaw": "JobID", "Start": "StartTime", "End": "EndTime"}
    renamed |= {"ExitCode": "exit_code", "JobName": "Name"}
    columns = tuple(renamed.get(name, name) for name in SACCT_COLUMNS)
    return _parse_jobs(printed, columns, prefix)


def _parse_jobs(printed: str, columns: tuple[str, ...], prefix: str) -> dict[int, Job]:
    rows = (line.removesuffix("|").split("|") for line in printed.split("\n"))
    # Anything else is the second line of a strange name; our own names have none.
    whole = (row for row in rows if len(row) == len(columns) and row[0].isdigit())
    named = (dict(zip(columns, row, strict=True)) for row in whole)
    jobs = [_build_job(row) for row in named if row["Name"].startswith(prefix)]
    return {job.id: job for job in jobs}


def _build_job(row: Mapping[str, str]) -> Job:
    state = row["State"].split()[0]  # CANCELLED by 0
    node = "" if row["NodeList"] == "None assigned" else row["NodeList"]
    waits = state == "PENDING" or not node
    code = row["exit_code"]
    if ":" in code:
        status, signal = map(int, code.split(":")[:2])
    else:  # a status of wait(2), as 22.05's squeue prints it
        status, signal = int(code) >> 8, int(code) & 0x7F
    return Job(
        id=int(row["JobID"]),
        name=row["Name"],
        state=state,
        reason="" if row["Reason"] == "None" else row["Reason"],
        node=node,
        # Otherwise it is when it may start, or when it was given up.
        start=0 if waits else _parse_time(row["StartTime"]),
        end=0 if state in {"PENDING", "RUNNING"} else _parse_time(row["EndTime"]),
        exit_status=status,
        signal=signal,
        preempted=state == "PREEMPTED" or _parse_time(row.get("PreemptTime", "")) > 0,
    )


def _parse_time(seconds: str) -> int:
    return int(seconds) if seconds.isdigit() else 0
