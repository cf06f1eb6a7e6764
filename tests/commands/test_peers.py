"""``hpcverify fleet peers``: tables of other tools, the history of the fleet, bad input."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import duckdb
import pytest

from tests.cli import Cli
from tests.history.nights import FIRST, make_run, write_runs
from tests.peers.fleets import LONGHORN

BERT = str(LONGHORN / "bert.csv.gz")
SGEMM = str(LONGHORN / "sgemm.csv.gz")


def write_table(path: Path, *, bad: float = 0.9, limit: str = "") -> Path:
    """Write a table in which node n7 reaches the share *bad* of the others."""
    dice = random.Random(1)
    lines = ["host,tflops,limit"]
    for i in range(40):
        value = 500 * dice.gauss(1, 0.003) * (bad if i == 7 else 1)
        lines.append(f"n{i},{value},{limit}")
    path.write_text("\n".join(lines))
    return path


def test_a_slow_node_is_told_in_a_line_with_what_the_clocks_say(cli: Cli) -> None:
    done = cli("fleet", "peers", BERT)
    assert done.returncode == 0
    assert "1 metric of up to 136 parts on 34 nodes: 1 outlier" in done.stdout
    assert "c002-5" in done.stdout
    assert "3.5 %" in done.stdout


def test_json_has_all_of_it(cli: Cli) -> None:
    answer = json.loads(cli("fleet", "peers", SGEMM, "--json").stdout)

    (metric,) = answer["metrics"]
    assert answer["verdict"] == "warn"
    assert [one["name"] for one in metric["outliers"]] == ["g076", "g124"]
    (past,) = answer["past"]
    assert "g195" in {change["part"] for change in past["changes"]}


def test_parts_that_changed_are_told_with_their_day(cli: Cli) -> None:
    told = cli("fleet", "peers", SGEMM).stdout.partition("compared with their own past:")[2]
    assert "g195" in told
    assert "2020-06-28" in told


@pytest.mark.parametrize(("limit", "status"), [("", 0), ("300", 0), ("480", 1)])
def test_peers_and_the_limit_of_the_specification_together_fail(
    cli: Cli, tmp_path: Path, limit: str, status: int
) -> None:
    table = write_table(tmp_path / "a.csv", limit=limit)
    done = cli("fleet", "peers", str(table), "--columns", "value=tflops", "--worse", "low")
    assert done.returncode == status
    assert "n7" in done.stdout


def test_the_site_may_want_a_fail_and_another_floor(cli: Cli, tmp_path: Path) -> None:
    table = str(write_table(tmp_path / "a.csv"))
    wanted = ("fleet", "peers", table, "--columns", "value=tflops", "--worse", "low")

    cli.site('[[peers]]\nmetric = "tflops"\nfloor = 0.05\notherwise = "fail"')
    assert cli(*wanted).returncode == 1
    cli.site('[[peers]]\nmetric = "tflops"\nfloor = 0.2')
    assert "0 outliers" in cli(*wanted).stdout


def test_nodes_of_a_kind_of_the_site_are_compared_with_each_other(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    dice = random.Random(1)
    lines = [f"n{i},{500 * dice.gauss(1, 0.003) * (0.95 if i < 5 else 1)}" for i in range(40)]
    table.write_text("\n".join(["host,tflops", *lines]))
    assert "5 outliers" in cli("fleet", "peers", str(table)).stdout
    cli.site('[[kinds]]\nname = "air"\nnodes = "n[0-4]"')
    assert "0 outliers" in cli("fleet", "peers", str(table)).stdout


def test_of_two_nodes_it_says_that_they_are_not_compared(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("host,tflops\nn1,500\nn2,400\n")
    done = cli("fleet", "peers", str(table))
    assert done.returncode == 0
    assert "not compared (fewer than 3 parts): tflops" in done.stdout


def test_parquet_is_read_as_csv_is(cli: Cli, tmp_path: Path) -> None:
    table, copy = write_table(tmp_path / "a.csv"), tmp_path / "a.parquet"
    with duckdb.connect() as db:
        rows = db.read_csv(str(table)).project("*, timestamptz '2026-11-22 01:00:00+00' as started")
        rows.write_parquet(str(copy))

    done = cli("fleet", "peers", str(copy), "--columns", "value=tflops", "--worse", "low")

    assert done.returncode == 0, done.stderr
    assert "n7" in done.stdout


def test_without_a_file_the_history_of_the_fleet_is_judged(cli: Cli) -> None:
    dice = random.Random(1)
    values = [500 * dice.gauss(1, 0.003) * (0.9 if i == 7 else 1) for i in range(40)]
    runs = [make_run(f"n{i:03}", value=v, gpus=1) for i, v in enumerate(values)]
    write_runs(cli.state, *runs)

    done = cli("fleet", "peers", "--since", f"{FIRST:%Y-%m-%d}", "--json")

    answer = json.loads(done.stdout)
    (metric,) = answer["metrics"]
    assert [one["name"] for one in metric["outliers"]] == ["n007 GPU 0"]
    assert metric["name"]["mode"] == "idle, H100"
    assert answer["screened"] == 0
    assert answer["compared"] == "40 of 40 nodes were compared"
    (unknown,) = answer["unjudged"]
    assert unknown.startswith("storage read ")  # the check has no such metric


def test_without_a_history_it_says_how_to_get_one(cli: Cli) -> None:
    done = cli("fleet", "peers")
    assert done.returncode == 2
    assert "hpcverify fleet collect writes them" in done.stderr


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("", (), "is empty"),
        ("a,b\n1,2\n", (), "no column has the node or the part"),
        ("host,metric\n1,2\n", (), "no column has the values"),
        ('node,"a; b; c"\nn1,x\n', (), "no column has the values"),
        ("host,ms,ms\n1,2,3\n", (), "each column needs a name of its own"),
        ("host,value\nn1,2\n", (), "add --worse low or --worse high"),
        ("host,value\nn1,x\n", (), "row 1, column value: 'x' is not a number"),
        ("host,ms\nn1,\n", (), "has no value that is a number"),
        ("host,ms\nn1\n", (), "row 1 has 1 cells"),
        ("host,ms\nn1,1\n", ("--columns", "value=speed"), "no column is called 'speed'"),
        ("host,ms\nn1,1\n", ("--columns", "vlaue=ms"), "did you mean value?"),
        ("host,ms\nn1,1\n", ("--columns", "ms"), "write ROLE=ms, as in value=ms"),
        ("host,ms\nn1,1\n", ("--columns", "value="), "write value=COLUMN"),
        ("host,ms\nn1,1\n", ("--by", "rack"), "no column is called 'rack'"),
        ("\udcff", (), "not a CSV file in UTF-8"),
    ],
)
def test_bad_input_is_named_in_one_line(
    cli: Cli, tmp_path: Path, text: str, arguments: tuple[str, ...], message: str
) -> None:
    table = tmp_path / "a.csv"
    table.write_bytes(text.encode(errors="surrogateescape"))

    done = cli("fleet", "peers", str(table), *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["a.parquet", "a.csv.gz"])
def test_a_file_that_is_not_what_its_name_says_is_named(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    table = tmp_path / name
    table.write_text("host,ms\nn1,1\n")

    done = cli("fleet", "peers", str(table))

    assert done.returncode == 2
    assert name in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_was_cut_short_is_named(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "a.csv.gz"
    table.write_bytes(gzip.compress(b"host,ms\nn1,1\n" * 1000)[:-20])
    done = cli("fleet", "peers", str(table))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_damaged_file_is_named(cli: Cli, tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"".join(b"n%d,%d\n" % (n, n * n) for n in range(2000))))
    packed[200:260] = bytes(60)
    table = tmp_path / "a.csv.gz"
    table.write_bytes(packed)

    done = cli("fleet", "peers", str(table))

    assert done.returncode == 2
    assert f"{table} cannot be read" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node,ms\nn1,0x10\n", "a.csv: row 1, column ms: '0x10' is not a number"),
        ("node;ms\nn1;1,234\n", "a.csv: row 1, column ms: '1,234' may be 1.234 or 1234: write"),
        ("node;tflops;a\nn1;1,5;x\nn2;1,234;x\n", "row 2, column tflops: '1,234' may be 1.234"),
        ("node;ms\nn1;3,5\nn2;1.234\n", "row 2, column ms: '1.234' may be a thousand and more"),
        ("node;ms;power\nn1;3,5;1,234\n", "row 1: the power '1,234' may be 1.234 or 1234: write"),
        ("node,name\nn1,x\n", "a.csv: no column has the values"),
        ("node,BusBW,busbw\nn1,1,2\n", "a.csv: each column needs a name of its own"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_name(
    cli: Cli, tmp_path: Path, text: str, message: str
) -> None:
    table = tmp_path / "a.csv"
    table.write_text(text)
    done = cli("fleet", "peers", str(table))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


def test_a_column_of_parquet_may_have_any_name(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "a.parquet"
    rows = 'select \'n\' || i as node, 5.0 as ms, 1 as "o""dd" from range(9) t(i)'
    duckdb.execute(f"copy ({rows}) to '{table}' (format parquet)")
    assert cli("fleet", "peers", str(table)).returncode == 0


def test_a_row_may_be_a_place_and_a_time_a_metric(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    lines = [f"n{i},r{i // 8},2026-11-01,{100 + i % 3 + 40 * (i == 7)}\n" for i in range(40)]
    table.write_text("node,row,time,time [us]\n" + "".join(lines))

    answer = json.loads(cli("fleet", "peers", str(table), "--worse", "high", "--json").stdout)

    named = {m["name"]["metric"]: [o["name"] for o in m["outliers"]] for m in answer["metrics"]}
    assert named == {"time [us]": ["n7"]}


def write_wide(path: Path) -> Path:
    """Write a wide table as of nvidia-smi, in which n7 is slow, hot and has a long pause."""
    dice = random.Random(1)
    lines = ["Host, TFLOPS ,busbw_gbps,step_time [ms],Clocks.SM [MHz],Comment,Rack"]
    for i in range(40):
        noise, bad = dice.gauss(1, 0.003), i == 7
        cells = [500 * noise * (0.9 if bad else 1), 370 * noise * (0.9 if bad else 1)]
        lines.append(
            f"n{i},{cells[0]:.3f},{cells[1]:.3f},{12 * noise * (1.2 if bad else 1):.4f} ms,"
            f"{1410 if bad else 1755} MHz,ok,r{i % 4}"
        )
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("values", ["{:.2f}", "{:.2f} ms"])
def test_decimal_commas_and_separators_are_read_as_the_same_numbers(
    cli: Cli, tmp_path: Path, values: str
) -> None:
    """As spreadsheets write numbers where the comma is the decimal mark."""
    dice = random.Random(1)
    numbers = [1500 * dice.gauss(1, 0.003) * (1.2 if i == 7 else 1) for i in range(40)]
    plain = [values.format(number) for number in numbers]
    commas = [
        f"{p[0]}.{p[1:]}".replace(".", "#").replace("#", ".", 1).replace("#", ",") for p in plain
    ]
    grouped = [f'"{p[0]},{p[1:]}"' for p in plain]
    answers = []
    for name, sep, cells in (("a", ";", plain), ("b", ";", commas), ("c", ",", grouped)):
        rows = [f"n{i}{sep}{cell}" for i, cell in enumerate(cells)]
        (tmp_path / name).write_text("\n".join([f"node{sep}ms", *rows]))
        answer = json.loads(cli("fleet", "peers", str(tmp_path / name), "--json").stdout)
        answers.append(answer["metrics"])

    assert answers[0] == answers[1] == answers[2]
    assert [one["name"] for one in answers[0][0]["outliers"]] == ["n7"]


def test_a_list_of_numbers_beside_decimal_points_is_no_decimal_comma(
    cli: Cli, tmp_path: Path
) -> None:
    lines = [f'n{i},{500 + i % 3}.125,"0,1"' for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["node,tflops,gpus", *lines]))
    assert cli("fleet", "peers", str(tmp_path / "a.csv")).returncode == 0


def test_each_column_with_numbers_is_a_metric_of_a_wide_table(cli: Cli, tmp_path: Path) -> None:
    done = cli("fleet", "peers", str(write_wide(tmp_path / "wide.csv")), "--json")

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = {each["name"]["metric"]: each for each in answer["metrics"]}
    assert {(n, m["worse"], m["name"].get("unit", "")) for n, m in found.items()} == {
        ("TFLOPS", "low", "TFLOP/s"),
        ("busbw_gbps", "low", ""),
        ("step_time", "high", "ms"),
    }
    for metric in found.values():
        assert [one["name"] for one in metric["outliers"]] == ["n7"]
        assert "clock 1410 MHz (peers 1755)" in metric["outliers"][0]["cause"]


def test_what_nccl_tests_printed_on_each_node_is_compared(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "all.txt"
    dice = random.Random(1)
    runs = []
    for i in range(12):
        busbw = 370 * dice.gauss(1, 0.003) * (0.8 if i == 5 else 1)
        ways = " ".join(f"{t:.1f} 9.9 {b:.2f} 0" for t, b in ((5e5 / busbw, busbw),) * 2)
        runs.append(
            "# nThread 1 nGpus 8 minBytes 8388608\n# Using devices\n"
            f"#  Rank  0 Group  0 Pid  77 on node{i:02} device  0 [0x0f] NVIDIA H100 80GB HBM3\n"
            f"#  Rank  1 Group  0 Pid  77 on node{i:02} device  1 [0x2d] NVIDIA H100 80GB HBM3\n"
            "#                              out-of-place                       in-place\n"
            "#       size   count  type  redop  root  time  algbw  busbw #wrong  time ...\n"
            f"     8388608  2097152  float  sum  -1  {ways}\n"
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 370.1\n#\n"
        )
    output.write_text("srun: job 7 started\n" + "".join(runs))

    answer = json.loads(cli("fleet", "peers", str(output), "--json").stdout)

    named = {
        (each["name"]["metric"], each["worse"], *(one["name"] for one in each["outliers"]))
        for each in answer["metrics"]
    }
    assert ("busbw.8388608", "low", "node05") in named
    assert ("time.8388608.in_place", "high", "node05") in named


def test_the_results_of_superbench_are_compared(cli: Cli, tmp_path: Path) -> None:
    results = tmp_path / "results-summary.jsonl"
    dice = random.Random(1)
    results.write_text(
        "".join(
            json.dumps(
                {
                    "node": f"node-{i:02}",
                    "kernel-launch/return_code": 0,
                    **{
                        f"kernel-launch/event_time:{g}": 0.005
                        * dice.gauss(1, 0.003)
                        * (1 + (i == 3))
                        for g in range(2)
                    },
                    "mem-bw/H2D_Mem_BW:1": 25.5 * dice.gauss(1, 0.003) * (0.8 if i == 4 else 1),
                    "mem-bw/some_number:1": i,
                    "mem-bw/correct:1": True,
                }
            )
            + "\n"
            for i in range(20)
        )
    )

    answer = json.loads(cli("fleet", "peers", str(results), "--json").stdout)

    named = {
        (each["name"]["check"], each["name"]["metric"]): [one["name"] for one in each["outliers"]]
        for each in answer["metrics"]
    }
    assert named == {
        ("kernel-launch", "event_time"): ["node-03"],
        ("mem-bw", "H2D_Mem_BW"): ["node-04 1"],
    }
    assert answer["unjudged"] == ["mem-bw some_number"]


def test_a_table_with_our_checks_is_judged_by_what_they_declare(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "nodes.csv"
    lines = ["Node,Check,Metric,Value,Unit"]
    for i in range(40):
        dice = random.Random(i)
        for check, metric, usual, worst, best in (
            ("storage", "rand_read.longest", 0.5, 8, 0.05),
            ("storage", "checkpoint.write.cv", 0.05, 0.5, 0.01),
            ("host", "smart.temperature", 40, 71, 24),
            ("allreduce", "time_p95.8MiB", 400, 900, 200),
            ("training", "mfu", 0.4, 0.3, 0.45),
        ):
            value = {7: worst, 23: best}.get(i, usual * dice.gauss(1, 0.004))
            lines.append(f"n{i:02},{check},{metric},{value},")
    table.write_text("\n".join(lines))

    answer = json.loads(cli("fleet", "peers", str(table), "--json").stdout)

    assert len(answer["metrics"]) == 5
    for metric in answer["metrics"]:
        assert [one["name"] for one in metric["outliers"]] == ["n07"], metric["name"]


def test_metrics_in_which_nothing_is_far_are_told_from_their_summary(
    cli: Cli, tmp_path: Path
) -> None:
    table = str(write_table(tmp_path / "even.csv", bad=1))

    (metric,) = json.loads(cli("fleet", "peers", table, "--json").stdout)["metrics"]

    assert (metric["parts"], metric["nodes"], metric["outliers"]) == (40, 40, [])
    assert metric["median"] == pytest.approx(500, rel=0.01)
    assert metric["spread"] == pytest.approx(0.003, rel=0.5)
    assert metric["least"] == pytest.approx(0.02, abs=0.005)


def test_a_table_of_parts_may_say_nothing_of_their_nodes(cli: Cli, tmp_path: Path) -> None:
    table = tmp_path / "gpus.tsv"
    table.write_text(
        "\n".join(
            ["uuid\ttflops\tother_tflops"]
            + [f"g{i}\t{500 * (0.9 if i == 7 else 1)}\t{500 + i % 3}" for i in range(40)]
        )
    )
    answer = json.loads(cli("fleet", "peers", str(table), "--json").stdout)

    named = {m["name"]["metric"]: [o["name"] for o in m["outliers"]] for m in answer["metrics"]}
    assert named == {"tflops": ["g7"], "other_tflops": []}
    assert {metric["nodes"] for metric in answer["metrics"]} == {0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"node": "n1", "a/b": 1}\nnonsense\n', "line 2 is not JSON"),
        ('{"host": "n1"}\n', "line 1 has no node"),
        ('{"node": ' + "[" * 100_000, "line 1 is not JSON"),
    ],
)
def test_a_broken_line_of_superbench_is_named(
    cli: Cli, tmp_path: Path, text: str, message: str
) -> None:
    results = tmp_path / "r.jsonl"
    results.write_text(text)

    done = cli("fleet", "peers", str(results))

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "r.jsonl" in done.stderr
    assert message in done.stderr


@pytest.mark.parametrize("head", [b"", b"host,ms\n", b"{", b"# nThread 1\n"])
def test_a_packed_file_with_one_endless_line_is_refused_before_it_is_read(
    cli: Cli, tmp_path: Path, head: bytes
) -> None:
    table = tmp_path / "a.csv.gz"
    table.write_bytes(gzip.compress(head + b"7" * 2**23, compresslevel=1))
    done = cli("fleet", "peers", str(table))
    assert (done.returncode, done.stdout) == (2, "")
    assert "has more than 4194304 characters" in done.stderr
    assert len(done.stderr.splitlines()) == 1
