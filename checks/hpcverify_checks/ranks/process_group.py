"""
The process group of ranks: begun, worked in and ended, so that none of them waits for good.

NCCL's watchdog would end the process of a rank that waits for a lost one, and NCCL itself
would hold it: nothing here may do either. After a wait in vain a roll call finds out which
rank is lost.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import msgspec

import hpcverify.check as hv
from hpcverify.telemetry.cuda_errors import find_cuda_error
from hpcverify_checks.node.stalls import OWN_WORK
from hpcverify_checks.ranks.board import (
    UNREADABLE,
    Board,
    FolderBoard,
    Port,
    describe_unreadable,
    open_board,
)
from hpcverify_checks.ranks.progress import wait_for_ranks
from hpcverify_checks.ranks.rendezvous import (
    LOOPBACK,
    POLL_SECONDS,
    LostRanks,
    RankGroup,
    announce_failure,
    describe_silence,
    exchange_messages,
    has_anyone_given_up,
    miss_silent_board,
    read_failures,
    set_environment,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FIRST_PAUSE_SECONDS = 2e-4
"""The first pause of a wait; each further pause is twice as long, up to `POLL_SECONDS`."""
ABORT_SECONDS = 5.0
"""The time in which NCCL ends its work. It takes far longer only if the GPU itself is stuck."""
STUCK, HELD_UP = b"stuck", b"held up"
"""Answers to the roll call of a rank whose work does not end, and of one whose own took long."""
HELD_UP_SHARE = 0.5
"""Of the patience with a rank: own work that takes longer explains why a sum did not end."""
ROLL_CALL_SECONDS = 15.0
"""The time in which all ranks notice that a peer gave up, abort, and answer the roll call."""
NCCL_SETTINGS = {
    # Else a thread of torch aborts the process when a collective takes too long. In this
    # mode there is no such thread, as of torch 2.13 (ProcessGroupNCCL.cpp); it says that
    # wait() then has a timeout, which is true only of works that were started with
    # async_op=True. So `await_ranks` looks at the clock itself.
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    # The same for a torch that starts its thread nevertheless.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
"""How torch's NCCL groups treat a lost peer, whatever the site has set. They read it when
they are made."""
LOOPBACK_SETTINGS = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "NCCL_COMM_ID": "",
}
"""How the ranks of one node find each other. What a job between nodes has set in their place may
name an interface or an address of another node."""
PEER_ERRORS = ("timeout", "timed out", "remote process exited", "ncclremoteerror")
"""Words of the errors of gloo, NCCL and torch that are about a peer and not about this part."""
BROKEN_CONNECTIONS = ("connection closed by peer", "connection reset", "broken pipe")
"""Words of gloo's errors when a peer has died. On one node who started it sees that at once."""


@contextmanager
def join_group(group: RankGroup, rank: int, device: torch.device) -> Generator[None]:
    """
    Be *rank* of the *group* while the block runs.

    All ranks meet before any of them calls a library: NCCL cannot be interrupted once it
    waits for a rank that never comes.

    Raises:
        LostRanks: A peer failed, or did not start or answer in time.

    """
    exchange_messages(group, rank, "here")
    with (
        _end_group(group, device),
        announce_failure(open_board(group.folder), rank),
        _convert_peer_errors(group, rank, device),
    ):
        _make_group(group, rank, device)
        exchange_messages(group, rank, "joined")  # rank 0 takes torch's store with it
        OWN_WORK.start()
        yield


def _make_group(group: RankGroup, rank: int, device: torch.device) -> None:
    import torch.distributed as dist

    patience = timedelta(seconds=group.timeout)
    store = _make_store(group, rank)
    store.set_timeout(patience)
    begin = partial(
        dist.init_process_group,
        group.backend,
        store=store,
        rank=rank,
        world_size=group.world,
        timeout=patience,
        device_id=device if device.type == "cuda" else None,
    )
    loopback = _choose_loopback(open_board(group.folder))
    with set_environment({**loopback, **NCCL_SETTINGS}), _allow_nvls(), _reset_group_count():
        if group.backend == "nccl":
            _start_in_background(group, rank, device, begin)
        else:
            begin()


def _make_store(group: RankGroup, rank: int) -> Any:
    """
    Make torch's own store: a server in rank 0, whose port is on the board.

    In a folder a file would do, but if a rank was killed while it wrote, torch 2.13 reads that
    file for ever. By itself torch listens to all networks: here it gets a listener at the one
    address that the ranks use. It does not authenticate its clients (see SECURITY.md).
    """
    import torch.distributed as dist

    board = open_board(group.folder)
    address = LOOPBACK if isinstance(board, FolderBoard) else board.address
    # Public and documented, but torch does not list it as exported.
    connect: Any = partial(
        dist.TCPStore,  # type: ignore[attr-defined]
        address,
        timeout=timedelta(seconds=group.timeout),
        wait_for_workers=False,
    )
    store, own = None, b""
    if rank == 0:
        listener = socket.create_server((address, 0))
        port = listener.getsockname()[1]
        store = connect(port, is_master=True, master_listen_fd=listener.detach())
        own = msgspec.json.encode(port)
    first, *_ = exchange_messages(group, rank, "store", own)
    try:
        return store or connect(msgspec.json.decode(first, type=Port))
    except UNREADABLE as exc:
        raise LostRanks({0: describe_unreadable(exc)}) from exc


def _choose_loopback(board: Board) -> Mapping[str, str]:
    """Let the ranks of one node meet on its loopback, whatever its name resolves to."""
    # Between nodes, the launcher of the rank knows its interfaces.
    return LOOPBACK_SETTINGS if isinstance(board, FolderBoard) else {}


def _start_in_background(
    group: RankGroup, rank: int, device: torch.device, begin: Callable[[], object]
) -> None:
    """Run *begin* in the background: NCCL waits without end for a rank that failed to begin."""
    act = _BackgroundCall(device, begin)
    act.start()
    deadline = monotonic() + group.timeout
    pause = open_board(group.folder).pause
    while act.is_alive():
        if has_anyone_given_up(group) or monotonic() > deadline:
            raise call_roll(group, rank, device)
        act.join(pause)
    if act.error is not None:
        raise act.error


@contextmanager
def _allow_nvls() -> Generator[None]:
    """
    Let NCCL reduce in the switches, as it does for jobs.

    In deterministic mode torch forbids it by a variable that stays in the environment, for
    all later groups of this process. Our sums are exact in any order.
    """
    import torch

    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


@contextmanager
def _reset_group_count() -> Generator[None]:
    """
    Make torch forget a group that could not be made.

    It numbers groups, ranks meet by the number, and the count only resets when a group
    ends: after a group that never began, this process would be alone in every later one.
    """
    import torch.distributed as dist

    try:
        yield
    except (RuntimeError, hv.Unable):
        if not dist.is_initialized():
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.destroy_process_group()
        raise


@contextmanager
def _end_group(group: RankGroup, device: torch.device) -> Generator[None]:
    """End the group after the block: at once if that fails, since a peer may be gone."""
    import torch.distributed as dist

    try:
        yield
    except BaseException:  # NCCL's kernels wait for ever if nobody aborts them
        _abort_group(group, device)
        raise
    if group.backend != "nccl":
        dist.destroy_process_group()
    elif not _run_within(group.timeout, device, dist.destroy_process_group):
        _abort_group(group, device)


def _abort_group(group: RankGroup, device: torch.device) -> None:
    """End the group without waiting; NCCL's kernels then end as well."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if not dist.is_initialized():
        return
    if group.backend == "nccl":
        # torch has no public name for it.
        abort = distributed_c10d._abort_process_group  # noqa: SLF001
        _run_within(ABORT_SECONDS, device, abort)
    else:
        dist.destroy_process_group()


def _run_within(seconds: float, device: torch.device, act: Callable[[], object]) -> bool:
    """Run *act* in the background, and return whether it ended within *seconds*."""
    thread = _BackgroundCall(device, act)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


class _BackgroundCall(Thread):
    """A call that may never return; this process can end without it."""

    def __init__(self, device: torch.device, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.device, self.act = device, act
        self.error: RuntimeError | None = None

    def run(self) -> None:
        import torch

        try:
            torch.cuda.set_device(self.device)  # each thread has its own
            self.act()
        except RuntimeError as exc:  # what CUDA and NCCL raise
            self.error = exc


@contextmanager
def _convert_peer_errors(group: RankGroup, rank: int, device: torch.device) -> Generator[None]:
    """
    Turn the errors of gloo, NCCL and torch that are about a peer into `LostRanks`.

    An error of CUDA is about this GPU, as "the launch timed out", and stays as it is.
    """
    import torch.distributed as dist

    try:
        yield
    except dist.DistNetworkError as exc:  # of the store, which is in rank 0
        raise call_roll(group, rank, device) from exc
    except RuntimeError as exc:
        own = find_cuda_error(str(exc))
        if own is not None and own.is_exact:
            raise
        is_local = isinstance(open_board(group.folder), FolderBoard)
        words = PEER_ERRORS if is_local else PEER_ERRORS + BROKEN_CONNECTIONS
        if not any(word in str(exc).lower() for word in words):
            raise
        raise call_roll(group, rank, device) from exc


def await_ranks(group: RankGroup, device: torch.device) -> None:
    """
    Wait until all ranks have done all that they began.

    Raises:
        LostRanks: a rank failed, or did not get here in time.

    """
    import torch

    _reduce_within(group, torch.zeros(1, device=device), "SUM")


def reduce_minimum(group: RankGroup, value: int, device: torch.device) -> int:
    """Find the smallest *value* of all ranks, so that they all decide the same."""
    import torch

    tensor = torch.tensor(value, dtype=torch.int64, device=device)
    _reduce_within(group, tensor, "MIN")
    return int(tensor)


def _reduce_within(group: RankGroup, tensor: Tensor, operation: str) -> None:
    with wait_for_ranks(), OWN_WORK.pause(tensor.device):
        _reduce(group, tensor, operation)
    OWN_WORK.collect()


def _reduce(group: RankGroup, tensor: Tensor, operation: str) -> None:
    import torch.distributed as dist

    # Only a work that was started like this can be asked whether it is done.
    work: Any = dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation), async_op=True)
    start, pause = monotonic(), FIRST_PAUSE_SECONDS
    look, every = start, open_board(group.folder).pause
    while not work.is_completed():
        now = monotonic()
        gave_up = pause >= POLL_SECONDS and now > look + every and has_anyone_given_up(group)
        if gave_up or now > start + group.timeout:
            raise call_roll(group, dist.get_rank(), tensor.device)
        look = now if now > look + every else look
        sleep(pause)
        pause = min(2 * pause, POLL_SECONDS)
    work.wait()  # raises what went wrong, if anything did


def call_roll(group: RankGroup, rank: int, device: torch.device) -> hv.Unable:
    """Find out, after a wait in vain, whether another rank is lost, this one or none."""
    try:
        with miss_silent_board(group):
            return _call_roll(group, rank, device, open_board(group.folder))
    except LostRanks as exc:
        return exc


def _call_roll(group: RankGroup, rank: int, device: torch.device, board: Board) -> hv.Unable:
    if failures := read_failures(board):
        return LostRanks(failures)
    if group.backend == "nccl":  # else this GPU would only wait for its peers
        _abort_group(group, device)
    idle = _is_idle(device)
    took = OWN_WORK.collect() if idle else 0.0
    held = took > HELD_UP_SHARE * group.timeout
    board.post("roll", rank, STUCK if not idle else HELD_UP if held else b"")
    deadline = monotonic() + min(group.timeout, ROLL_CALL_SECONDS)
    answers: dict[int, bytes] = {}
    while len(answers) < group.world and not (failures := read_failures(board)):
        if monotonic() > deadline:
            silent = [r for r in range(group.world) if r not in answers]
            return LostRanks(describe_silence(group, silent))
        answers = board.read("roll", group.world)
        sleep(board.pause)
    if failures:
        return LostRanks(failures)
    return _judge_roll(group, rank, answers, took, device)


def _judge_roll(
    group: RankGroup, rank: int, answers: Mapping[int, bytes], took: float, device: torch.device
) -> hv.Unable:
    """Say from the *answers* of all ranks which of them is at fault, if one is."""
    stuck, late = ([r for r, a in answers.items() if a == word] for word in (STUCK, HELD_UP))
    if rank in stuck:
        return hv.Unable(
            f"its own work did not end within {group.timeout:g} s: see its Xid errors, and "
            "reset the GPU",
            hv.Cause.TIMEOUT,
            hv.Remedy.RESET_GPU,
        )
    if stuck:
        return LostRanks(dict.fromkeys(stuck, "was lost: it has work that does not end"))
    if late and len(late) < group.world:
        if rank not in late:
            return LostRanks(dict.fromkeys(late, "held up the others with its own work"))
        return hv.Unable(
            f"its own work, between two sums, took {took:.0f} s, and the others waited: see its "
            "Xid errors and its clocks, and run again",
            hv.Cause.TIMEOUT,
            hv.Remedy.INSPECT,
        )
    return hv.Unable(
        f"a sum over {group.world} ranks did not end within {group.timeout:g} s, though "
        "all ranks are there: see what nvlink, xid and p2p found, and run again",
        hv.Cause.TIMEOUT,
        hv.Remedy.INSPECT if device.type == "cuda" else hv.Remedy.RERUN,
    )


def _is_idle(device: torch.device) -> bool:
    """Whether the GPU finishes its own work, now that it waits for no peer."""
    import torch

    if device.type != "cuda":
        return True
    deadline = monotonic() + ABORT_SECONDS
    while not torch.cuda.current_stream(device).query():
        if monotonic() > deadline:
            return False
        sleep(POLL_SECONDS)
    return True


def report_nccl_settings(ctx: hv.Context) -> Iterator[hv.Coverage]:
    """Report the settings of NCCL in the environment, and those that were ignored."""
    if ctx.rank != 0:
        return
    forced = {**_choose_loopback(open_board(str(ctx.shared))), **NCCL_SETTINGS}
    ignored = [name for name, value in forced.items() if os.environ.get(name, value) != value]
    if ignored:
        yield hv.Coverage("node", f"set in the environment and ignored: {', '.join(ignored)}")
    settings = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("NCCL_") and name not in ignored
    ]
    if settings and ctx.device.kind == "cuda":
        yield hv.Coverage("node", f"NCCL's settings in the environment: {', '.join(settings)}")
