"""
Start ranks, watch them, and gather what they measured.

Each rank has a launcher, a small process without torch, which Slurm starts; on one node
without Slurm one launcher starts them all. Rank 0's launcher keeps the board. It goes on
when a rank hangs, rank 0 too, and so it can always say which ranks are missing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import closing, suppress
from time import monotonic, sleep

import msgspec

import hpcverify.check as hv
from hpcverify.records.collectives import SECRET_VARIABLE, CollectiveRun
from hpcverify.telemetry import pci
from hpcverify_checks.collectives.combine import AUTO, RING
from hpcverify_checks.collectives.hangs import HEARTBEAT, HEARTBEAT_SECONDS, SILENT_SECONDS
from hpcverify_checks.collectives.meeting import (
    LauncherArrival,
    find_board,
    find_interface,
    list_nodes,
    meet_launchers,
    serve_board,
)
from hpcverify_checks.collectives.order import LaunchOrder
from hpcverify_checks.collectives.rank_process import RankProcess, start_ranks
from hpcverify_checks.collectives.secret import make_secret
from hpcverify_checks.collectives.stand_in import OVER, StandIn, notify_stand_in
from hpcverify_checks.collectives.watch import DIED, LEFT, RankWatch
from hpcverify_checks.collectives.wire import collect_answers, pair_nodes, take_part
from hpcverify_checks.ranks.board import BoardError, SocketBoard
from hpcverify_checks.ranks.collective import CollectiveJob
from hpcverify_checks.ranks.rendezvous import LostRanks, set_environment

WITH_OPINION = b"with a second opinion"
"""The last word of rank 0's launcher, if pairs of nodes then measure the wire."""
PROCESSES_ON_CPU = 2
ALONE = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""Settings of NCCL that leave a node's ranks nothing but its network adapters."""
RAS = "NCCL_RAS_ENABLE"
"""NCCL's service for diagnosis, on by default: its threads have ended jobs (NVIDIA/nccl issues
1996 and 2346), and it has said OK of a rank that was stuck (1730). We ask launchers instead."""
RING_SETTINGS = {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"}


def launch(encoded: bytes) -> bytes:
    """
    Launch the ranks of a `LaunchOrder`, in JSON.

    Rank 0's launcher gives a `CollectiveRun`, in JSON; if it is lost, its stand-in does.
    """
    order = msgspec.json.decode(encoded, type=LaunchOrder)
    if not order.world:
        world = _count_own_ranks()
        ranks = tuple((rank, rank) for rank in range(world))
        order = msgspec.structs.replace(order, world=world, ranks=ranks)
    try:
        run = _launch_first(order) if order.ranks[0][0] == 0 else _launch_other(order)
    except BoardError as exc:  # as when an interface went down
        raise hv.Unable(f"{exc}: run it again", hv.Cause.TIMEOUT, hv.Remedy.RERUN) from exc
    return msgspec.json.encode(run) if run else b""


def _count_own_ranks() -> int:
    """Count the GPUs of this node that a job here may use; without any, two processes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(pci.list_nvidia_gpus()) or len(pci.list_amd_gpus())
    if gpus and visible is not None:
        gpus = len([gpu for gpu in visible.split(",") if gpu.strip()])
    if gpus == 1:
        text = "there is one GPU here, and nothing to exchange with: run it over nodes, by srun"
        raise hv.Unable(text, hv.Cause.MISCONFIGURED)
    return gpus or PROCESSES_ON_CPU


def _make_job(order: LaunchOrder, board: SocketBoard) -> CollectiveJob:
    job = msgspec.convert(order, CollectiveJob, from_attributes=True)
    return msgspec.structs.replace(job, folder=str(board))


def _launch_first(order: LaunchOrder) -> CollectiveRun:
    """Launch ranks here, keep the board, and put together what all ranks leave."""
    if order.is_alone:
        secret, credential = secrets.token_hex(32), b""
    else:
        secret, credential = make_secret()
    with (
        set_environment({SECRET_VARIABLE: secret}),
        closing(serve_board(order, secret, credential)) as server,
    ):
        board = SocketBoard(server.address, server.port, order.group, secret)
        job = _make_job(order, board)
        watch = RankWatch(order, server)
        try:
            arrivals, job = meet_launchers(order, job, server.address)
        except LostRanks as exc:
            watch.dismiss(exc.lost)
            return watch.conclude(exc.lost, order.algorithm)
        nodes = list_nodes(arrivals)
        algorithm = _choose_algorithm(order, nodes)
        settings = choose_settings(order, algorithm, server.address)
        with start_ranks(order, job, settings) as children:
            watch.wait(children)
            run = watch.conclude({}, algorithm)
        is_whole = order.second_opinion and not run.missing
        pairs = pair_nodes(nodes) if is_whole else ()
        server.leave(OVER, 0, WITH_OPINION if pairs else b"")
        notify_stand_in(board, arrivals)
        if pairs:
            take_part(pairs, 0, board, arrivals)
            opinions = collect_answers(pairs, nodes, board)
            run = msgspec.structs.replace(run, wire_opinions=opinions)
        watch.await_leavers()
        return run


def _choose_algorithm(order: LaunchOrder, nodes: Sequence[str]) -> str:
    return order.algorithm or (RING if len(set(nodes)) > 1 else AUTO)


def choose_settings(order: LaunchOrder, algorithm: str, own_address: str) -> dict[str, str]:
    """
    Choose the settings of NCCL and gloo, besides those of the environment.

    gloo takes the interface that leads to the other nodes: this node's own name may
    resolve to its loopback (Debian's 127.0.1.1). NCCL finds it by itself between nodes.
    """
    interface = find_interface(own_address)
    gloo = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", interface)}
    nccl = (ALONE if order.alone else {}) | (RING_SETTINGS if algorithm == RING else {})
    nccl |= {} if RAS in os.environ else {RAS: "0"}
    return nccl | (gloo if gloo["GLOO_SOCKET_IFNAME"] else {})


def _launch_other(order: LaunchOrder) -> CollectiveRun | None:
    """
    Launch ranks whose results go to rank 0's launcher.

    Returns a result only if that one is lost, and this is its stand-in.

    Raises:
        LostRanks: a rank never came, so nothing was measured here.

    """
    board, own_address = find_board(order)
    with set_environment({SECRET_VARIABLE: board.secret}):
        job = _make_job(order, board)
        try:
            arrivals, job = meet_launchers(order, job, own_address)
        except hv.Unable:
            _leave(order, board)
            raise
        return _launch_beside(order, job, board, arrivals)


def _launch_beside(
    order: LaunchOrder, job: CollectiveJob, board: SocketBoard, arrivals: Sequence[LauncherArrival]
) -> CollectiveRun | None:
    """Launch ranks, and post how far they are until rank 0's launcher has all results."""
    rank = order.ranks[0][0]
    nodes = list_nodes(arrivals)
    settings = choose_settings(order, _choose_algorithm(order, nodes), arrivals[rank].address)
    with (
        StandIn.open(arrivals, rank, board) as stand_in,
        start_ranks(order, job, settings) as children,
    ):
        contact = monotonic()
        while not stand_in.is_over():
            try:
                if board.read(OVER, enough=1):  # waits a moment for it
                    break
                _post_progress(board, children)
                contact = monotonic()
            except BoardError:
                if monotonic() > contact + SILENT_SECONDS + HEARTBEAT_SECONDS:
                    return stand_in.conclude()
                sleep(board.pause)
            stand_in.post({child.rank: child.read_heartbeat() for child in children})
    with suppress(BoardError):  # it has the results, and need not wait
        if board.read(OVER).get(0) == WITH_OPINION:
            take_part(pair_nodes(nodes), rank, board, arrivals)
    _leave(order, board)
    return None


def _leave(order: LaunchOrder, board: SocketBoard) -> None:
    """Post that rank 0's launcher need not wait for this one any more."""
    with suppress(BoardError):
        for rank, _ in order.ranks:
            board.post(LEFT, rank)


def _post_progress(board: SocketBoard, children: Sequence[RankProcess]) -> None:
    """Post how far the ranks launched here are, and which of them died."""
    heartbeats = {child.rank: child.read_heartbeat() for child in children}
    board.post(HEARTBEAT, children[0].rank, msgspec.msgpack.encode(heartbeats))
    for child in children:
        if why := child.describe_end():
            board.post(DIED, child.rank, why.encode())
            board.post("lost", child.rank, why.encode())
