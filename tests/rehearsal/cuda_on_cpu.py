"""
torch's CUDA, told by a CPU: real numbers, a modelled time, faults on demand.

A tensor "on cuda:3" is a tensor of the host with a tag. A `TorchFunctionMode` sees every
call, refuses what CUDA would refuse, computes on the host, tags the outcome and lets the
stream of the device take as long as the model says.
"""

from __future__ import annotations

import contextlib
import os
import threading
import types
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.cuda import nccl as torch_nccl
from torch.overrides import TorchFunctionMode

from tests.rehearsal import nccl
from tests.rehearsal.clock import CALL_SECONDS, CLOCK
from tests.rehearsal.faults import list_faults, strike
from tests.rehearsal.gpu import (
    HERE,
    NODE,
    REAL_PRODUCT_SECONDS,
    Event,
    Gpu,
    Stream,
    find_gpu,
    find_part,
    index_of,
    list_gpus,
    start_cuda,
)
from tests.rehearsal.parts import INTEGRATED
from tests.rehearsal.products import Multiplier, count_seconds

if TYPE_CHECKING:
    from torch import Tensor

TAG = "_rehearsed_gpu"
MOVES = frozenset({"cpu", "cuda", "to", "pin_memory"})
MIXED = frozenset(
    {"__setitem__", "__getitem__", "set_", "index_put_", "index", "equal", "data_ptr"}
    | {"untyped_storage"}
)
"""What takes tensors of several devices."""
WAITS = frozenset(
    {"item", "tolist", "__int__", "__bool__", "__float__", "__index__", "nonzero", "unique"}
    | {"equal", "masked_select"}
)
"""What gives the host a value, so that it has to wait."""
VIEWS = frozenset(
    {"view", "narrow", "size", "dim", "numel", "stride", "unbind", "transpose", "permute"}
    | {"expand", "expand_as", "detach", "flatten", "T", "view_as", "element_size"}
    | {"requires_grad_", "data_ptr", "is_contiguous", "__len__", "__iter__", "storage_offset"}
    | {"untyped_storage", "__hash__", "register_hook", "__set__", "is_complex", "nelement"}
    | {"ndimension", "is_floating_point", "__dir__", "is_pinned", "__get__"}
)
"""What starts no kernel."""
SPOILT_BYTES = 4096
"""From this size on, a copy to or from the host can be spoilt."""
GIGA = 1e9
CUDA_ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
ROCM_ARCHITECTURES = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100")
"""What torch was built for."""


def tag_of(tensor: Tensor) -> Gpu | None:
    """Give the GPU on which *tensor* is, if it is on one."""
    found: Gpu | None = tensor.__dict__.get(TAG)
    return found


def put_on(gpu: Gpu, tensor: Tensor) -> None:
    """Have *tensor* be on *gpu*."""
    if tag_of(tensor) is None:
        gpu.keep(tensor)
        setattr(tensor, TAG, gpu)


def find_tensors(*values: Any) -> Iterator[Tensor]:
    """Give all tensors in arguments and results."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from find_tensors(*value)
        elif isinstance(value, dict):
            yield from find_tensors(*value.values())


def split_device(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[torch.device | None, tuple[Any, ...], dict[str, Any]]:
    """Give the device that a call asks for, if any, and the arguments with the host in place."""
    host, wanted = torch.device("cpu"), None
    given = list(args)
    for i, value in enumerate(given):
        if isinstance(value, torch.device):
            given[i], wanted = host, value
    named = dict(kwargs)
    if (device := named.get("device")) is not None:
        wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        named["device"] = host
    return wanted, tuple(given), named


class CudaMode(TorchFunctionMode):
    """Sees every call of torch in the thread that it is entered in."""

    def __init__(self) -> None:
        super().__init__()
        self._multiplier = Multiplier()
        self._copied: dict[tuple[int, int, int], tuple[int, int]] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        if CLOCK.is_modelled:
            CLOCK.advance(CALL_SECONDS)
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        name: str = getattr(func, "__name__", "") or str(func)
        if name == "__get__":
            return _read_attribute(func, args)
        return self._call(func, name.removesuffix(".default"), args, kwargs or {})

    def _call(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if name in MOVES:
            return _move(name, args, kwargs)
        wanted, args, kwargs = split_device(args, kwargs)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if name == "copy_":
            return self._copy(func, args[0], args[1])
        tensors = list(find_tensors(args, kwargs))
        if wanted is not None:
            gpu = find_gpu(wanted) if wanted.type == "cuda" else None
        else:
            gpu = next((g for t in tensors if (g := tag_of(t)) is not None), None)
        if gpu is None:
            result = func(*args, **kwargs)
            return _spoil_sum(result) if name == "sum" and NODE.is_initialized else result
        gpu.require_alive()
        if name not in MIXED and wanted is None:
            _require_together(name, tensors)
        return self._compute(func, name, args, kwargs, gpu)

    def _compute(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], gpu: Gpu
    ) -> Any:
        if name in WAITS:
            gpu.settle()
        product = self._multiplier.multiply(func, name, args, kwargs, gpu)
        result = func(*args, **kwargs) if product is None else product
        if name not in VIEWS:
            least = REAL_PRODUCT_SECONDS if product is not None else 0.0
            gpu.start_kernel(_count_seconds(name, args, kwargs, result, gpu), least=least)
        for tensor in find_tensors(result):
            put_on(gpu, tensor)
        if name in WAITS:
            gpu.settle()
        return result

    def _copy(self, func: Any, target: Tensor, source: Tensor) -> Tensor:
        """Copy between memories, or in one; the same once more is not done again."""
        there, here = tag_of(target), tag_of(source)
        for gpu in (there, here):
            if gpu is not None:
                gpu.require_alive()
        if there is None and here is None:
            copied: Tensor = func(target, source)
            return copied
        key = (target.data_ptr(), source.data_ptr(), target.numel())
        if self._copied.get(key) != (source._version, target._version):
            func(target, source)
            self._copied[key] = (source._version, target._version)
        _take_time_to_move(target, here, there)
        _spoil(target, here, there)
        return target


_MAKE_SUBCLASS = torch.Tensor._make_subclass


def _make_parameter(cls: type[Tensor], data: Tensor, *args: Any) -> Tensor:
    """Make a parameter of a module, which no mode sees, on the device of its *data*."""
    made: Tensor = _MAKE_SUBCLASS(cls, data, *args)
    if (gpu := tag_of(data)) is not None:
        setattr(made, TAG, gpu)
    return made


def _spoil_sum(result: Tensor) -> Tensor:
    """Change a bit of a sum of integers, as of a digest or a proof, that the host took."""
    due = (
        result.dtype == torch.int64
        and result.dim() < 2  # one sum, or one of each row
        and any([*strike("host_sum", HERE.device)])
    )
    if due:
        result.view(-1)[:1].bitwise_xor_(1 << 9)
    return result


def _read_attribute(func: Any, args: Sequence[Any]) -> Any:
    tensor = args[0]
    gpu = tag_of(tensor) if isinstance(tensor, torch.Tensor) else None
    if gpu is None:
        return func(*args)
    told = {
        "device": torch.device("cuda", gpu.index),
        "is_cuda": True,
        "is_cpu": False,
    }
    what = getattr(getattr(func, "__self__", None), "__name__", "")
    if what in told:
        return told[what]
    result = func(*args)
    if isinstance(result, torch.Tensor) and tag_of(result) is None:
        setattr(result, TAG, gpu)
    return result


def _require_together(name: str, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors of several devices, but for single numbers of the host."""
    places = {
        "cpu" if gpu is None else f"cuda:{gpu.index}"
        for tensor in tensors
        if (gpu := tag_of(tensor)) is not None or tensor.dim()
    }
    if len(places) > 1:
        one, other, *_ = sorted(places)
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two "
            f"devices, {one} and {other}! (when checking {name})"
        )


def _count_seconds(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, gpu: Gpu
) -> float:
    """Count the seconds that a good GPU takes: for its arithmetic, or for its memory."""
    operands = [x for x in args[:2] if isinstance(x, torch.Tensor) and x.dim() > 1]
    if len(operands) > 1 and ("mm" in name or "matmul" in name):
        return count_seconds(gpu, operands[0], operands[1])
    touched = {id(x): x for x in find_tensors(args, kwargs, result)}
    moved = sum(x.numel() * x.element_size() for x in touched.values())
    return moved / (gpu.part.memory * GIGA)


def _move(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Make a tensor on another device, or of another type."""
    source: Tensor = args[0]
    here = tag_of(source)
    if name == "pin_memory":
        if here is not None:
            raise RuntimeError("only dense CPU tensors can be pinned")
        return source.clone()
    wanted, dtype = _read_target(name, source, args[1:], kwargs)
    there = here
    if wanted is not None:
        there = find_gpu(wanted) if wanted.type == "cuda" else None
    for gpu in (here, there):
        if gpu is not None:
            gpu.require_alive()
    if there is here:
        made = source.to(dtype, copy=bool(kwargs.get("copy")))
        if here is not None and made is not source:
            here.start_kernel(2 * made.nbytes / (here.part.memory * GIGA))
    else:
        made = source.to(dtype, copy=True)
        _take_time_to_move(made, here, there)
        _spoil(made, here, there)
        if here is not None and there is None and not kwargs.get("non_blocking"):
            here.settle()
    if there is not None:
        put_on(there, made)
    return made


def _read_target(
    name: str, source: Tensor, rest: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[torch.device | None, torch.dtype]:
    wanted: torch.device | None = None
    dtype = source.dtype
    for value in (*rest, kwargs.get("device"), kwargs.get("dtype"), kwargs.get("other")):
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, torch.Tensor):
            gpu = tag_of(value)
            wanted = torch.device("cpu") if gpu is None else torch.device("cuda", gpu.index)
            dtype = value.dtype
        elif isinstance(value, torch.device | str):
            wanted = torch.device(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            wanted = torch.device("cuda", value)
    if name != "to":
        wanted = torch.device("cpu") if name == "cpu" else torch.device("cuda", index_of(wanted))
    return wanted, dtype


def _take_time_to_move(moved: Tensor, here: Gpu | None, there: Gpu | None) -> None:
    at_work = here or there
    assert at_work is not None, "it moves between memories of the host"
    part, size = at_work.part, moved.numel() * moved.element_size()
    if here is there:
        at_work.start_kernel(2 * size / (part.memory * GIGA))
    elif here and there:  # waits for what both ends have begun, and holds both up
        here.current.end = max(here.current.end, there.current.end)
        here.start_kernel(size / (part.peer * GIGA))
        there.current.end = max(there.current.end, here.current.end)
    else:
        at_work.start_kernel(size / (part.pcie * GIGA))


def _spoil(made: Tensor, here: Gpu | None, there: Gpu | None) -> None:
    """Change a bit of what was copied, if a fault wants that."""
    if here and there:
        due = any(
            fault.is_due()
            for fault in list_faults()
            if fault.kind == "p2p" and fault.pair in ((), (here.index, there.index))
        )
        least = 1
    elif there:
        due = made.numel() > SPOILT_BYTES and any([*strike("h2d", there.index)])
        least = SPOILT_BYTES
    elif here:
        due = made.numel() > SPOILT_BYTES and any([*strike("d2h", here.index)])
        least = SPOILT_BYTES
    else:
        return
    if due and made.numel() >= least and here is not there:
        made.view(-1).view(torch.uint8)[made.element_size() * (made.numel() // 2)] ^= 4


def get_properties(device: Any = None) -> types.SimpleNamespace:
    """Describe a device as `torch.cuda.get_device_properties` does."""
    gpu = find_gpu(device)
    major, minor = gpu.part.capability
    return types.SimpleNamespace(
        name=gpu.part.name,
        major=major,
        minor=minor,
        total_memory=gpu.total,
        multi_processor_count=gpu.part.sms,
        is_integrated=int(os.environ.get(INTEGRATED, "0")),
        is_multi_gpu_board=0,
        uuid=gpu.uuid,
        L2_cache_size=50 * 2**20,
        regs_per_multiprocessor=65536,
        warp_size=32,
        gcnArchName=gpu.part.architecture and f"{gpu.part.architecture}:sramecc+:xnack-",
        pci_domain_id=0,
        pci_bus_id=0x0C + 0x10 * gpu.index,
        pci_device_id=0,
    )


def set_device(device: Any) -> None:
    """Choose the device of this thread, which takes a context on it."""
    gpu = find_gpu(device)
    gpu.require_alive()
    HERE.device = gpu.index


def empty_cache() -> None:
    """Give back the memory that no tensor has; after each check, the worker does so."""
    CLOCK.end_check()
    if not NODE.is_initialized:
        return
    for gpu in list_gpus():
        held = gpu.count_held()
        if gpu.reserved > held:
            gpu.require_alive()
            CLOCK.end_check()
        gpu.reserved = held


@contextlib.contextmanager
def use_stream(stream: Stream | None) -> Generator[Stream | None]:
    """Work in *stream*, and on its device."""
    if stream is None:
        yield None
        return
    index = stream.gpu.index
    device, before = HERE.device, stream.gpu.current
    HERE.device, HERE.streams[index] = index, stream
    try:
        yield stream
    finally:
        HERE.device, HERE.streams[index] = device, before


def get_memory(device: Any = None) -> tuple[int, int]:
    """Give the free and the whole memory of a device, in bytes."""
    gpu = find_gpu(device)
    gpu.require_alive()
    return gpu.count_free(), gpu.total


def can_reach(device: Any, peer: Any) -> bool:
    """Say whether a GPU reaches the memory of another."""
    start_cuda()
    refused = any(f.kind == "no_p2p" for f in list_faults())
    return index_of(device) != index_of(peer) and not refused


def get_current_device() -> int:
    """Give the number of the device of this thread."""
    start_cuda()
    return HERE.device


class Version(types.ModuleType):
    """torch's module of versions: what it was built for goes by the part."""

    @property
    def cuda(self) -> str | None:
        """The version of CUDA, if it was built for that."""
        return None if find_part().architecture else "13.0"

    @property
    def hip(self) -> str | None:
        """The version of ROCm, if it was built for that."""
        return "7.2.26015" if find_part().architecture else None


def _ask(answer: Callable[[Gpu], Any]) -> Callable[..., Any]:
    """Make a function of a device, which may be the current one."""

    def ask(device: Any = None) -> Any:
        return answer(find_gpu(device))

    return ask


def install() -> None:
    """Put all of this into torch."""
    setattr(torch.version, "__class__", Version)  # noqa: B010 - a module's
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: len(list_gpus()),
        "_lazy_init": start_cuda,
        "init": start_cuda,
        "is_initialized": lambda: bool(list_gpus()) and NODE.is_initialized,
        "set_device": set_device,
        "current_device": get_current_device,
        "get_device_properties": get_properties,
        "get_device_capability": _ask(lambda gpu: gpu.part.capability),
        "get_device_name": _ask(lambda gpu: gpu.part.name),
        "get_arch_list": lambda: [
            *(ROCM_ARCHITECTURES if find_part().architecture else CUDA_ARCHITECTURES)
        ],
        "mem_get_info": get_memory,
        "empty_cache": empty_cache,
        "synchronize": _ask(lambda gpu: gpu.settle()),
        "Stream": Stream,
        "Event": Event,
        "stream": use_stream,
        "current_stream": _ask(lambda gpu: gpu.current),
        "default_stream": _ask(lambda gpu: gpu.default),
        "can_device_access_peer": can_reach,
        "memory_allocated": _ask(lambda gpu: gpu.count_held()),
        "memory_reserved": _ask(lambda gpu: gpu.reserved),
    }.items():
        setattr(torch.cuda, name, value)
    setattr(torch.Tensor, "_make_subclass", _make_parameter)  # noqa: B010 - torch's is typed
    setattr(torch.accelerator, "empty_host_cache", lambda: None)  # noqa: B010 - torch's is typed
    setattr(torch_nccl, "version", lambda: (2, 29, 3))  # noqa: B010 - torch's is typed
    host = torch.Generator
    setattr(torch, "Generator", lambda device="cpu": (device, host("cpu"))[1])  # noqa: B010
    _enter_in_every_thread()
    nccl.install(tag_of)
    CudaMode().__enter__()  # type: ignore[no-untyped-call]


def _enter_in_every_thread() -> None:
    run = threading.Thread.run

    def run_in_mode(self: threading.Thread) -> None:
        with CudaMode():
            run(self)

    setattr(threading.Thread, "run", run_in_mode)  # noqa: B010 - a method
