"""
What it costs to ask the history of a large fleet, beside a bare loop over the same night.

A night is made of 10,000 nodes with eight GPUs: 20 metrics of each GPU and 40 of each node,
200 values a node. 20 GPUs are 4 % slow in one metric. The loop reads a line of JSON per node
with the same values and compares each with a number that it was given: it learns nothing, so
it is the floor of what reading takes. Then the past of all parts is judged over 90 nights, in
which 20 GPUs become 2 % slower, and the first week of them is rolled up. Each figure is that of
a process of its own, with its imports: CPU seconds, and the most memory that it ever had.
It takes 7 GiB below ``TMPDIR``, and ten minutes of CPU to make the nights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hpcverify.history.columns import ORDER  # noqa: E402 - as this
from hpcverify.history.database import find_database, open_to_write  # noqa: E402 - below the path
from hpcverify.history.reader import Choice, export_measurements  # noqa: E402 - as this
from hpcverify.history.screen import open_screen  # noqa: E402 - as this
from hpcverify.history.writer import roll_up_weeks  # noqa: E402 - as this
from hpcverify.insight.comparison import judge_past, judge_peers  # noqa: E402 - as this
from hpcverify.peers.floors import PeerFloor  # noqa: E402 - as this
from hpcverify.peers.rule import DEFAULT_FLOOR  # noqa: E402 - as this
from hpcverify.plan.config import Site  # noqa: E402 - as this

SIZES = (1000, 10_000)
NIGHTS = 90
FIRST = date(2026, 8, 24)
SCREEN_S, SCREEN_MIB, TREND_S = 1.5, 150, 60
"""The targets: CPU seconds and MiB of a night, seconds of the trends."""
REPEATS = 3
SLOW_GPUS = 20
MOVED_NODES, MOVED_NIGHT = 20, 60
SITE = Site(peers=(PeerFloor(floor=DEFAULT_FLOOR, worse="low"),))
"""Its checks are made up, so nobody else says which side is worse."""


def main() -> None:
    """Measure, and print one line for each figure."""
    with tempfile.TemporaryDirectory(prefix="hvhistory-") as name:
        state = Path(name)
        for nodes in SIZES:
            state = Path(name, str(nodes))
            make(state, "night")
            for _ in range(REPEATS):
                report(f"{nodes} nodes, one night, bare loop", "loop", state)
                most = f"at most {SCREEN_S} s, {SCREEN_MIB} MiB"
                report(f"{nodes} nodes, one night, screened ({most})", "screen", state)
                report(f"{nodes} nodes, one night, judged in racks of 8", "judge", state)
        make(state, "nights")
        size = find_database(state).stat().st_size / 2**20
        print(f"{NIGHTS} nights of {SIZES[-1]} nodes: {size:.0f} MiB")
        report(f"{SIZES[-1]} nodes, {NIGHTS} nights, trends (at most {TREND_S} s)", "trend", state)
        report(f"{SIZES[-1]} nodes, {NIGHTS} nights, one node is written as CSV", "node", state)
        report(f"{SIZES[-1]} nodes, a week is rolled up", "roll", state)


def make(state: Path, what: str) -> None:
    """Make measurements in another process: what it takes is not to be counted."""
    subprocess.run([sys.executable, __file__, what, str(state)], check=True)


def make_night(state: Path) -> str:
    """Make the first night: values that spread by 0.6 % around what the metric has."""
    nodes = int(state.name)
    find_database(state).parent.mkdir(parents=True)
    rows = f"""
        select timestamptz '{FIRST} 23:00:00+00' + to_seconds(n % 20000) as started,
            printf('%s-230000-%06x', strftime(date '{FIRST}', '%Y%m%d'), n) as run,
            printf('gpu%05d', n) as node,
            if(g < 8, 'GPU-' || md5(n || '-' || g), 'node') as part,
            if(g < 8, 'GPU ' || g, 'node') as label, if(g < 8, 'gpu', 'system') as kind,
            if(g < 8, 'NVIDIA H100 80GB HBM3', 'PowerEdge XE9680') as model,
            'check' || m // 5 as check_name, 'metric' || m % 5 as metric,
            (1000 + 10 * m) * (1 + 0.006 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()))
                * if(m = 7 and g = 3 and n < {SLOW_GPUS}, 0.96, 1) as value,
            'TFLOP/s' as unit, 'pass' as verdict, 'idle' as suite,
            '565.57.01' as driver, '96.00.A5.00.01' as firmware, date '{FIRST}' as night
        from range({nodes}) t(n), (select * from range(20) a(m), range(8) b(g)
            union all select 20 + m, 8 from range(40) c(m))
    """
    with open_to_write(state) as db:
        db.execute("select setseed(0.17); set memory_limit = '2GiB'")
        db.execute(f"insert into nights by name {rows} order by {ORDER}")
        db.execute(  # the same values as lines of JSON, one for each node
            "copy (select node, map(list(check_name || '/' || metric || ':' || label),"
            " list(value))::json as metrics from nights group by node)"
            f" to '{state}/night.ndjson' (format json)"
        )
    return ""


def repeat_night(state: Path) -> str:
    """Make the nights after the first: each value changes by 0.15 % from run to run."""
    for night in range(1, NIGHTS):
        with open_to_write(state) as db:
            db.execute(f"""
                insert into nights select * replace (
                    started + interval {night} days as started, run || '-{night}' as run,
                    value * (1 + 0.0026 * (random() + random() - 1)
                        - if(node < 'gpu{MOVED_NODES:05d}' and metric = 'metric2'
                            and label = 'GPU 3' and {night} >= {MOVED_NIGHT}, 0.02, 0)) as value,
                    night + {night} as night)
                from nights where night = '{FIRST}' order by {ORDER}
            """)
    return ""


def report(what: str, mode: str, state: Path) -> None:
    """Do *mode* in a process of its own, and print what it took and what it found."""
    with subprocess.Popen(
        [sys.executable, __file__, mode, str(state)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None  # noqa: S101 - narrows the type
        found = child.stdout.read().strip()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{what}: failed")
    cpu, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"{what}: {cpu:.2f} s CPU, {memory:.0f} MiB: {found}", flush=True)


def loop(state: Path) -> str:
    """Compare each value with a number that was given: the mean, less 3 %."""
    least = {f"check{m // 5}/metric{m % 5}": 0.97 * (1000 + 10 * m) for m in range(60)}
    bad = 0
    with (state / "night.ndjson").open() as lines:
        for line in lines:
            for name, value in json.loads(line)["metrics"].items():
                bad += value < least[name.partition(":")[0]]
    return f"{bad} values are low"


def screen(state: Path) -> str:
    """Screen each metric, of parts and of whole nodes, and read the lists to be judged."""
    with open_screen(state, Choice()) as opened:
        lists = list(opened.screen(lambda _: DEFAULT_FLOOR))
        chosen = [one for one in lists if one.needs_judgement]
        values = sum(len(opened.read_values(one.of, whole_nodes=one.whole_nodes)) for one in chosen)
    return f"{len(chosen)} of {len(lists)} lists to judge, with {values} values"


def judge(state: Path) -> str:
    """Judge each part, node, rack and version by its peers, as `hpcverify fleet peers` does."""
    judged = judge_peers(state, Choice(), SITE, lambda node: {"rack": f"r{int(node[3:]) // 8}"})
    outliers = sum(len(entry.outliers) for entry in judged.document.metrics)
    return f"{outliers} named in {len(judged.document.metrics)} of 60 metrics"


def trend(state: Path) -> str:
    """Judge the past of each part, as `hpcverify fleet peers` does."""
    past = judge_past(state, Choice(), SITE)
    changes = sum(len(judged.changes) for judged in past.values())
    return f"{changes} parts changed"


def export_node(state: Path) -> str:
    """Write the history of one node."""
    choice = Choice(nodes=("gpu00017",))
    return f"{export_measurements(state, choice, 'csv', state / 'node.csv')} measurements"


def roll(state: Path) -> str:
    """Roll up the first week, as a collect does at the end of the retention."""
    with open_to_write(state) as db:
        roll_up_weeks(db, FIRST + timedelta(weeks=1), keep_nights=0)
        ((rows,),) = db.execute("select count(*) from weeks").fetchall()
    return f"{rows} rows"


MODES = {
    "night": make_night,
    "nights": repeat_night,
    "loop": loop,
    "screen": screen,
    "judge": judge,
    "trend": trend,
    "node": export_node,
    "roll": roll,
}

if __name__ == "__main__":
    if sys.argv[1:]:
        print(MODES[sys.argv[1]](Path(sys.argv[2])))
    else:
        main()
