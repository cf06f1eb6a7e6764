"""GPUs that are not there: their memory, their streams of work, and what is wrong with them."""

from __future__ import annotations

import fcntl
import math
import os
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.rehearsal import faults
from tests.rehearsal.clock import CLOCK
from tests.rehearsal.faults import TAIL, find_faults, strike
from tests.rehearsal.parts import PARTS, Part

if TYPE_CHECKING:
    from torch import Tensor

CONTEXT_BYTES = 2**20
"""What a process takes on a GPU."""
LARGE_BYTES = 2**14
"""From this size on, an allocation can meet the fault that it finds no memory."""
STALL_SECONDS = 30.0
"""Of a kernel that stands still, and then goes on."""
EXCLUSIVE = "REHEARSAL_EXCLUSIVE"
"""Names a folder if one process alone may use each GPU: it locks a file of the GPU there."""
REAL_PRODUCT_SECONDS = 0.02
"""What a product takes at least where time is real: the host must not be what is timed."""


class Gpu:
    """What torch knows of one device in this process."""

    def __init__(self, index: int, part: Part, uuid: str, total: int) -> None:
        """Make one that nobody has used yet, with *total* bytes of memory."""
        self.index, self.part, self.uuid, self.total = index, part, uuid, total
        self.reserved = 0
        self._error = ""
        self._lock = -1
        self._hangs = False
        self._kept: dict[int, tuple[Any, int]] = {}
        self._held = 0
        self.default = Stream.of(self)
        self.streams = [weakref.ref(self.default)]
        self._speed = min((f.share for f in find_faults("slow", index)), default=1.0)

    @property
    def current(self) -> Stream:
        """The stream of this thread."""
        return HERE.streams.get(self.index, self.default)

    def count_held(self) -> int:
        """Count the bytes of all tensors that live."""
        for key in [key for key, (storage, _) in self._kept.items() if storage.expired()]:
            self._held -= self._kept.pop(key)[1]
        return self._held

    def count_free(self) -> int:
        """Count the bytes that nobody has, this process and others."""
        self.reserved = max(self.reserved, self.count_held())
        taken = sum(int(f.share * self.total) for f in find_faults("short", self.index))
        return max(0, self.total - CONTEXT_BYTES - self.reserved - taken)

    def keep(self, tensor: Tensor) -> None:
        """
        Account for the memory of *tensor*.

        Raises:
            OutOfMemoryError: there is not enough.

        """
        storage = tensor.untyped_storage()
        key = storage._cdata  # as torch does
        known = self._kept.get(key)
        if known is not None and not known[0].expired():
            return
        size = storage.nbytes()
        if self._held + size > self.reserved:
            held = self.count_held()
            short = size >= LARGE_BYTES and any([*strike("oom", self.index)])
            if short or size > self.count_free() + self.reserved - held:
                free = self.count_free() / 2**20
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU "
                    f"{self.index} has a total capacity of {self.total / 2**20:.2f} MiB "
                    f"of which {free:.2f} MiB is free."
                )
            self.reserved = max(self.reserved, held + size)
        if known is not None:
            self._held -= known[1]
        self._kept[key] = (StorageWeakRef(storage), size)  # type: ignore[no-untyped-call]
        self._held += size

    def require_alive(self) -> None:
        """
        Do what every call of CUDA does first: tell of an error that stays.

        Raises:
            AcceleratorError: there is one, or others have the GPU.

        """
        CLOCK.model()
        if find_faults("busy", self.index) or not self._claim():
            raise torch.AcceleratorError(faults.BUSY + TAIL)
        if self._error:
            raise torch.AcceleratorError(self._error + TAIL)

    def _claim(self) -> bool:
        """Whether this process may use the GPU; in exclusive-process mode, until it ends."""
        folder = os.environ.get(EXCLUSIVE)
        if not folder or self._lock >= 0:
            return True
        lock = os.open(f"{folder}/{self.uuid}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def break_context(self, error: str) -> None:
        """Have every later call of this process raise *error*, as a kernel that broke does."""
        self._error = self._error or error

    def start_kernel(self, seconds: float, *, least: float = 0.0) -> None:
        """
        Let the stream of this thread work for *seconds*, and the kernel meet its faults.

        Where time is real it takes *least* seconds.

        Raises:
            AcceleratorError: the GPU has no such kernel.

        """
        if find_faults("no_image", self.index):
            raise torch.AcceleratorError(faults.NO_IMAGE + TAIL)
        for kind, number in faults.DEATHS.items():
            if any(strike(kind, self.index)):
                os.kill(os.getpid(), number)
        for kind, message in faults.STICKY.items():
            for _ in strike(kind, self.index):
                self._error = self._error or message
        for fault in strike("memory", self.index):
            self._flip_stored_bit(fault.bit)
        stream = self.current
        if not CLOCK.is_modelled:
            seconds = max(seconds, least)
        stream.end = max(CLOCK.read(), stream.end) + seconds / self._speed
        stream.end += STALL_SECONDS * len([*strike("stall", self.index)])
        if any([*strike("hang", self.index)]):
            self._hangs = True
        if self._hangs:
            stream.end = math.inf

    def _flip_stored_bit(self, bit: int) -> None:
        """Flip a bit in the middle of the largest block of memory in use."""
        sizes = [(size, ref) for ref, size in self._kept.values() if not ref.expired()]
        if not sizes:
            return
        size, ref = max(sizes, key=lambda pair: pair[0])
        make = torch.UntypedStorage._new_with_weak_ptr  # as torch does
        storage = make(ref.cdata)
        block = torch.empty(0, dtype=torch.uint8).set_(storage)
        block[size // 2 + bit // 8] ^= 1 << bit % 8

    def wait(self, end: float) -> None:
        """Have the host wait until *end*, and tell it of an error that came meanwhile."""
        CLOCK.wait_until(end)
        self.require_alive()

    def settle(self) -> None:
        """Wait until all streams have come to their ends."""
        self.wait(max(stream.end for s in self.streams if (stream := s())))


class Stream:
    """Work of a GPU that is done in order: as `torch.cuda.Stream`."""

    gpu: Gpu
    end: float
    """When all of it will have been done."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        """Make one more on *device*."""
        del priority
        self.gpu, self.end = find_gpu(device), 0.0
        self.gpu.require_alive()
        self.gpu.streams.append(weakref.ref(self))

    @classmethod
    def of(cls, gpu: Gpu) -> Stream:
        """Make the one that a GPU always has."""
        made = cls.__new__(cls)
        made.gpu, made.end = gpu, 0.0
        return made

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.gpu.index)

    def synchronize(self) -> None:
        self.gpu.wait(self.end)

    def query(self) -> bool:
        self.gpu.require_alive()
        return self.end <= CLOCK.read()

    def wait_stream(self, other: Stream) -> None:
        """Have later work here wait for earlier work there."""
        self.end = max(self.end, other.end)

    def wait_event(self, event: Event) -> None:
        """Have later work here wait for *event*."""
        if event.at is not None:
            self.end = max(self.end, event.at)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class Event:
    """A place in a stream: as `torch.cuda.Event`."""

    def __init__(
        self,
        enable_timing: bool = False,  # noqa: FBT001, FBT002 - as torch has it
        blocking: bool = False,  # noqa: FBT001, FBT002 - likewise
        **_: Any,
    ) -> None:
        """Make one that is nowhere yet."""
        del blocking
        self._is_timing = enable_timing
        self._gpu: Gpu | None = None
        self.at: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Put it at the end of what *stream* has to do."""
        stream = stream or find_gpu(None).current
        stream.gpu.require_alive()
        self._gpu, self.at = stream.gpu, max(CLOCK.read(), stream.end)

    def query(self) -> bool:
        """Say whether the stream has come there."""
        return self.at is None or self.at <= CLOCK.read()

    def synchronize(self) -> None:
        """Wait until the stream has come there."""
        if self._gpu is not None and self.at is not None:
            self._gpu.wait(self.at)

    def wait(self, stream: Stream | None = None) -> None:
        """Have later work of *stream* wait for it."""
        (stream or find_gpu(None).current).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """
        Give the milliseconds from here to *end*.

        Raises:
            ValueError: an event was not made for it.
            RuntimeError: the work between them goes on, or they are of two GPUs.

        """
        if not (self._is_timing and end._is_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end.at is None or self._gpu is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self._gpu.require_alive()
        if max(end.at, self.at) > CLOCK.read():
            raise RuntimeError("CUDA error: device not ready")
        if self._gpu is not end._gpu:
            raise RuntimeError("CUDA error: invalid resource handle")
        return (end.at - self.at) * 1e3


class Here(threading.local):
    """What a thread has chosen."""

    def __init__(self) -> None:
        """Begin as CUDA does: with the first GPU, and its own stream."""
        self.device = 0
        self.streams: dict[int, Stream] = {}


HERE = Here()


@dataclass(slots=True)
class Node:
    """The GPUs of this process."""

    gpus: tuple[Gpu, ...] = ()
    is_initialized: bool = False
    owner: int = field(default=0)
    """The process that they belong to: a child has its own."""


NODE = Node()


def find_part() -> Part:
    """Find the part of which all GPUs of the node are."""
    return PARTS[os.environ.get("REHEARSAL_PART", "h100")]


def list_gpus() -> tuple[Gpu, ...]:
    """List the GPUs that the environment of this process describes."""
    if NODE.owner != os.getpid():
        NODE.owner, NODE.is_initialized = os.getpid(), False
        NODE.gpus = ()
        HERE.__init__()  # type: ignore[misc]
        part = find_part()
        total = int(float(os.environ["REHEARSAL_MEMORY_MIB"]) * 2**20)
        uuids = os.environ["REHEARSAL_UUIDS"].split()
        NODE.gpus = tuple(
            Gpu(i, part, uuid.removeprefix("GPU-"), total) for i, uuid in enumerate(uuids)
        )
    return NODE.gpus


def start_cuda() -> None:
    """
    Do what the first call of CUDA does.

    Raises:
        RuntimeError: CUDA does not start on this node.

    """
    list_gpus()
    if NODE.is_initialized:
        return
    for kind, message in faults.AT_START.items():
        if any(f.kind == kind for f in faults.list_faults()):
            raise RuntimeError(message)
    NODE.is_initialized = True


def index_of(device: Any) -> int:
    """Give the number of *device*: torch's, a number, or the current one for None."""
    if device is None:
        return HERE.device
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return HERE.device if device.index is None else int(device.index)


def find_gpu(device: Any) -> Gpu:
    """
    Find the GPU that is meant by *device*.

    Raises:
        AcceleratorError: there is none.

    """
    start_cuda()
    index = index_of(device)
    if not 0 <= index < len(NODE.gpus):
        raise torch.AcceleratorError("CUDA error: invalid device ordinal" + TAIL)
    return NODE.gpus[index]
