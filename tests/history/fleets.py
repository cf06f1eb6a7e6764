"""The history of a made fleet, written at once: what its parts reach is a formula of SQL."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path

from hpcverify.history.columns import ORDER
from hpcverify.history.database import find_database, open_to_write

FIRST = date(2026, 11, 2)
DRIVER, NEW_DRIVER = "565.57.01", "580.1"


def make_history(
    state: Path,
    *,
    nights: int = 1,
    level: str = "1",
    new_driver: str = "false",
    clock: str = "1500",
    absent: str = "false",
    clock_error: str = "0",
    nodes: int = 24,
    gpus: int = 1,
    part_spread: float = 0.004,
    run_spread: float = 0.0015,
    first: date = FIRST,
    name: str = "printf('r%dn%d', n // 10, n)",
) -> None:
    """
    Write so many nights of a fleet: products of its GPUs, and their clock under load.

    *level* (a share), *new_driver* and *clock* are formulas of n, the number of the node, g, that
    of its GPU, and t, that of the night. Ten nodes are in a rack: r0n3, r1n12; *name* is another
    formula for what they are called. *first* is the first night; who is *absent* does not run, and
    *clock_error* are the days by which the clock of a node is ahead.
    """
    find_database(state).parent.mkdir(parents=True, exist_ok=True)
    with open_to_write(state) as db:
        db.execute("select setseed(0.17)")
        normal = "sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())"
        db.execute(
            f"create temp table parts as select n, g, 1 + {part_spread} * {normal} as own"
            f" from range({nodes}) a(n), range({gpus}) b(g)"
        )
        for t in range(nights):
            night = first + timedelta(days=t)
            rows = f"""
                select timestamptz '{night} 22:00:00+00' as started,
                    strftime(date '{night}' + to_days({clock_error}), '%Y%m%d-220000-')
                        || printf('%06x', n) as run,
                    {name} as node, printf('GPU-%d-%d', n, g) as part,
                    printf('GPU %d', g) as label, 'gpu' as kind, 'H100' as model,
                    m.name as check_name, m.metric as metric, m.unit as unit, 'pass' as verdict,
                    if(m.name = 'gemm', 500 * own * (1 + {run_spread} * {normal}) * ({level}),
                       {clock}) as value, 'idle' as suite, '' as firmware,
                    if({new_driver}, '{NEW_DRIVER}', '{DRIVER}') as driver, date '{night}' as night
                from parts, (select {t} as t) nights, (values
                    ('gemm', 'bf16.sustained', 'TFLOP/s'), ('thermal', 'clock.mean', 'MHz')
                ) m(name, metric, unit) where not ({absent})
            """
            db.execute(f"insert into nights by name {rows} order by {ORDER}")


def find_noon_after(nights: int) -> float:
    """Find the noon (UTC, seconds since 1970) at which so many nights are over."""
    day = FIRST + timedelta(days=nights)
    return datetime.fromisoformat(f"{day}T12:05:00+00:00").timestamp()
