# mypy: ignore-errors
# pyright: basic
"""
torch's CUDA, told by a CPU: real numbers, a modelled time, faults on demand.

A tensor "on cuda:3" is a tensor of the host with a tag. A TorchFunctionMode sees every
call, refuses what CUDA would refuse, computes on the host, tags the outcome and lets the
stream of the device take as long as the model says. The time that the host spends on
computing in the GPU's stead does not count: what the events show is of the model.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import types
import weakref

import torch
from tests.rehearsal.smaller import COPIED as COPY
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

PARTS = {  # TFLOP/s that a good one sustains by type of operand, GB/s of memory
    "h100": dict(
        name="NVIDIA H100 80GB HBM3",
        cc=(9, 0),
        sms=132,
        memory=2900,
        rates=dict(
            float64=58,
            float32=52,
            tf32=400,
            float16=720,
            bfloat16=720,
            float8_e4m3fn=1300,
            int8=1400,
        ),
    ),
    "h200": dict(
        name="NVIDIA H200",
        cc=(9, 0),
        sms=132,
        memory=4200,
        rates=dict(
            float64=58,
            float32=52,
            tf32=400,
            float16=720,
            bfloat16=720,
            float8_e4m3fn=1300,
            int8=1400,
        ),
    ),
    "a100": dict(
        name="NVIDIA A100-SXM4-80GB",
        cc=(8, 0),
        sms=108,
        memory=1800,
        rates=dict(float64=18, float32=18.5, tf32=130, float16=268, bfloat16=268, int8=500),
    ),
    "l40s": dict(
        name="NVIDIA L40S",
        cc=(8, 9),
        sms=142,
        memory=760,
        rates=dict(
            float64=1.3,
            float32=60,
            tf32=120,
            float16=240,
            bfloat16=240,
            float8_e4m3fn=480,
            int8=480,
        ),
    ),
    "b200": dict(
        name="NVIDIA B200",
        cc=(10, 0),
        sms=148,
        memory=7000,
        rates=dict(
            float64=34,
            float32=70,
            tf32=800,
            float16=1550,
            bfloat16=1550,
            float8_e4m3fn=3000,
            int8=3000,
        ),
    ),
}
NVLINK, PCIE, LAUNCH = 390e9, 55e9, 2e-6
CONTEXT = 8 * 2**20
"""Bytes that a process takes on a GPU: 500 MB of 80 GB."""
MESSAGES = {
    "ecc": "CUDA error: uncorrectable ECC error encountered",
    "assert": "CUDA error: device-side assert triggered",
    "launch": "CUDA error: unspecified launch failure",
    "illegal": "CUDA error: an illegal memory access was encountered",
    "lost": "CUDA error: unknown error",
    "no_image": "CUDA error: no kernel image is available for execution on the device",
}
TAIL = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so "
    "the stacktrace below might be incorrect.\nFor debugging consider passing "
    "CUDA_LAUNCH_BLOCKING=1\n"
)
INIT = {
    "init802": "Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
    "functions before calling NumCudaDevices() that might have already set an error? "
    "Error 802: system not yet initialized",
    "old_driver": "The NVIDIA driver on your system is too old (found version 12040). "
    "Please update your GPU driver by downloading and installing a new version from "
    "the URL: http://www.nvidia.com/Download/index.aspx",
    "busy": "CUDA error: CUDA-capable device(s) is/are busy or unavailable" + TAIL,
}


class Fault:
    """``kind@gpu[:after=N,every=N,share=X]``."""

    def __init__(self, text):
        kind, _, rest = text.partition("@")
        where, _, options = rest.partition(":")
        self.kind = kind
        self.gpus = {int(x) for x in where.split("-") if x != "*" and x} or None
        self.pair = tuple(int(x) for x in where.split("-")) if "-" in where else None
        read = dict(o.split("=") for o in options.split(",") if o)
        self.after, self.every = int(read.get("after", 0)), int(read.get("every", 1))
        self.share = float(read.get("share", 0.7))
        self.bit = int(read.get("bit", 20))
        self.count = 0

    def hits(self, gpu):
        return self.gpus is None or gpu in self.gpus

    def due(self):
        self.count += 1
        past = self.count - self.after
        return past > 0 and (past - 1) % self.every == 0


FAULTS = [Fault(f) for f in os.environ.get("REHEARSAL_FAULTS", "").split() if f]


def faults(kind, gpu):
    return [f for f in FAULTS if f.kind == kind and f.hits(gpu)]


class Clock(threading.local):
    """
    The time of a thread of the host, less what it spent in the GPU's stead.

    Of its own CPU time and its sleeps: whatever else runs on this machine is left out.
    """

    lent = 0.0
    slept = 0.0
    inside = None
    """When the call in hand began: meanwhile the time stands still, but for waits."""

    def now(self):
        spent = time.thread_time() if self.inside is None else self.inside
        return spent + self.slept - self.lent


_sleep = time.sleep


def sleep(seconds):
    _sleep(seconds)
    CLOCK.slept += max(0.0, seconds)


time.sleep = sleep
CLOCK = Clock()


class Gpu:
    """What torch knows of one device in this process."""

    def __init__(self, index, part, uuid, total):
        self.index, self.part, self.uuid, self.total = index, PARTS[part], uuid, total
        self.default = Stream.__new__(Stream)
        self.default._of(self)
        self.streams = [weakref.ref(self.default)]
        self.kept = {}
        self.reserved = 0
        self.broken = None
        self.touched = False
        self.slow = min((f.share for f in faults("slow", index)), default=1.0)

    @property
    def current(self):
        """The stream of this thread."""
        return HERE.streams.get(self.index, self.default)

    # memory
    def held(self):
        for key in [k for k, (ref, _) in self.kept.items() if ref.expired()]:
            del self.kept[key]
        return sum(size for _, size in self.kept.values())

    def free(self):
        held = self.held()
        self.reserved = max(self.reserved, held)
        taken = sum(int(f.share * self.total) for f in faults("short", self.index))
        return max(0, self.total - CONTEXT - self.reserved - taken)

    def keep(self, tensor):
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.kept and not self.kept[key][0].expired():
            return
        size = storage.nbytes()
        held = self.held()
        if held + size > self.reserved:
            if held + size > self.total - CONTEXT or (
                size > 2**20 and any(f.due() for f in faults("oom", self.index))
            ):
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU "
                    f"{self.index} has a total capacity of {self.total / 2**20:.2f} MiB "
                    f"of which {(self.total - CONTEXT - held) / 2**20:.2f} MiB is free."
                )
            self.reserved = held + size
        self.kept[key] = (StorageWeakRef(storage), size)

    # errors
    def alive(self):
        """What every call of CUDA does first: tell of an error that stays."""
        self.touched = True
        if self.broken:
            raise torch.AcceleratorError(self.broken + TAIL)

    def struck(self):
        """Count a kernel; have it fail if that is wanted."""
        for kind, message in MESSAGES.items():
            for fault in faults(kind, self.index):
                if fault.due() and not self.broken:
                    self.broken = message
        for fault in faults("hang", self.index):
            if fault.due():
                self.current.end = float("inf")

    # time
    def takes(self, seconds):
        stream = self.current
        stream.end = max(CLOCK.now(), stream.end) + LAUNCH + seconds / self.slow

    def wait(self, end):
        while (left := end - CLOCK.now()) > 0:
            time.sleep(min(left, 0.5))
        self.alive()

    def settle(self):
        self.wait(max(s().end for s in self.streams if s()))


class Stream:
    def __init__(self, device=None, priority=0, **_):
        self._of(GPUS[index_of(device)])
        self.gpu.alive()
        self.gpu.streams.append(weakref.ref(self))

    def _of(self, gpu):
        self.gpu, self.end = gpu, 0.0

    @property
    def device(self):
        return torch.device("cuda", self.gpu.index)

    def synchronize(self):
        self.gpu.wait(self.end)

    def wait_stream(self, other):
        self.end = max(self.end, other.end)

    def wait_event(self, event):
        self.end = max(self.end, event.at)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event


class Event:
    def __init__(self, enable_timing=False, blocking=False, interprocess=False, **_):
        self.timing, self.at, self.gpu = enable_timing, None, None

    def record(self, stream=None):
        stream = stream or GPUS[HERE.device].current
        stream.gpu.alive()
        self.gpu, self.at = stream.gpu, max(CLOCK.now(), stream.end)

    def query(self):
        return self.at is None or self.at <= CLOCK.now()

    def synchronize(self):
        if self.at is not None:
            self.gpu.wait(self.at)

    def wait(self, stream=None):
        (stream or GPUS[HERE.device].current).wait_event(self)

    def elapsed_time(self, end):
        if not (self.timing and end.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self.gpu.alive()
        if end.at > CLOCK.now() or self.at > CLOCK.now():
            raise RuntimeError("CUDA error: device not ready")
        if self.gpu is not end.gpu:
            raise RuntimeError("CUDA error: invalid resource handle")
        return (end.at - self.at) * 1e3


class Here(threading.local):
    device = 0

    def __init__(self):
        self.streams = {}


HERE = Here()
GPUS = []
_initialized = False


def lazy_init():
    global _initialized
    if _initialized:
        return
    for kind, message in INIT.items():
        if faults(kind, -1) or any(f.kind == kind for f in FAULTS):
            raise RuntimeError(message)
    _initialized = True


def index_of(device):
    if device is None:
        return HERE.device
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return HERE.device if device.index is None else device.index


def gpu_of(device):
    lazy_init()
    index = index_of(device)
    if not 0 <= index < len(GPUS):
        raise torch.AcceleratorError("CUDA error: invalid device ordinal" + TAIL)
    return GPUS[index]


def tag(tensor):
    return tensor.__dict__.get("_gpu")


MIXED = {
    "copy_",
    "to",
    "__setitem__",
    "__getitem__",
    "set_",
    "index_put_",
    "index",
    "equal",
    "data_ptr",
    "untyped_storage",
    "_cdata",
}
SYNC = {
    "item",
    "tolist",
    "__int__",
    "__bool__",
    "__float__",
    "__index__",
    "nonzero",
    "unique",
    "equal",
    "masked_select",
    "__len__x",
}
FREE = {
    "view",
    "narrow",
    "__get__",
    "reshape_",
    "size",
    "dim",
    "numel",
    "stride",
    "unbind",
    "transpose",
    "permute",
    "expand",
    "expand_as",
    "detach",
    "flatten",
    "T",
    "view_as",
    "element_size",
    "requires_grad_",
    "data_ptr",
    "is_contiguous",
    "__len__",
    "__iter__",
    "storage_offset",
    "untyped_storage",
    "__hash__",
    "register_hook",
    "__set__",
    "is_complex",
    "nelement",
    "ndimension",
    "is_floating_point",
    "__dir__",
    "is_pinned",
}


def described(args, kwargs):
    """The device that is asked for, if any, and the arguments without it."""
    wanted = None

    def plain(x):
        nonlocal wanted
        if isinstance(x, torch.device):
            wanted = x
            return torch.device("cpu") if x.type == "cuda" else x
        return x

    args = tuple(plain(a) for a in args)
    if "device" in kwargs:
        device = kwargs["device"]
        if device is not None:
            device = (
                torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
            )
            wanted = device
            kwargs = {**kwargs, "device": torch.device("cpu")}
    return wanted, args, kwargs


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        begun = CLOCK.inside = time.thread_time()
        try:
            return self._call(func, args, kwargs or {})
        finally:
            CLOCK.inside = None
            CLOCK.lent += time.thread_time() - begun

    def _call(self, func, args, kwargs):
        name = getattr(func, "__name__", "")
        if func is torch.device:
            return func(*args, **kwargs)
        if name == "__get__":
            return self._get(func, args)
        short = name.removesuffix(".default") if name else str(func)
        wanted, args, kwargs = described(args, kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        tags = [tag(t) for t in tensors]
        there = next((g for g in tags if g is not None), None)
        # moves
        if short in ("cpu", "cuda", "to", "pin_memory"):
            return self._moved(short, wanted, args, kwargs)
        pinned = bool(kwargs.get("pin_memory"))
        if pinned:
            kwargs = {**kwargs, "pin_memory": False}
        if wanted is not None:
            there = gpu_of(wanted) if wanted.type == "cuda" else None
        elif there is None and not tensors:
            there = None
        if short == "copy_":
            return self._copied(func, args, kwargs)
        if there is None:
            return func(*args, **kwargs)
        there.alive()
        if short not in MIXED and wanted is None:
            self._together(short, tensors, tags)
        if short in SYNC:
            self._waited(there)
        product = self._product(func, short, args, kwargs, there)
        if product is not None:
            result = product
        else:
            result = func(*args, **kwargs)
        if short in FREE:
            self._stand(tensors, result)
        else:
            there.struck()
            there.takes(self._cost(short, args, kwargs, result, there))
        self._tagged(result, there)
        if short in SYNC:
            self._waited(there)
        return result

    @staticmethod
    def _stand(tensors, result):
        """A view stands for as much as what it is a view of."""
        marks = {k: v for k, v in tensors[0].__dict__.items() if k in ("stands_for", "same")}
        if marks and isinstance(result, torch.Tensor):
            result.__dict__.update(marks)

    @staticmethod
    def _waited(gpu):
        gpu.settle()

    def _get(self, func, args):
        what = getattr(getattr(func, "__self__", None), "__name__", "")
        tensor = args[0]
        gpu = tag(tensor) if isinstance(tensor, torch.Tensor) else None
        if gpu is not None:
            if what == "device":
                return torch.device("cuda", gpu.index)
            if what == "is_cuda":
                return True
            if what == "is_cpu":
                return False
        result = func(*args)
        if gpu is not None and isinstance(result, torch.Tensor) and tag(result) is None:
            result._gpu = gpu
        return result

    def _tagged(self, result, gpu):
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and tag(leaf) is None:
                gpu.keep(leaf)
                leaf._gpu = gpu

    def _together(self, short, tensors, tags):
        places = {
            g.index if g else "cpu" for t, g in zip(tensors, tags) if g is not None or t.dim()
        }
        if len(places) > 1:
            names = sorted("cpu" if p == "cpu" else f"cuda:{p}" for p in places)
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two "
                f"devices, {names[0]} and {names[1]}! (when checking {short})"
            )

    def _moved(self, short, wanted, args, kwargs):
        source = args[0]
        gpu = tag(source)
        if short == "pin_memory":
            assert gpu is None, "only dense CPU tensors can be pinned"
            return source.clone()
        rest = args[1:]
        if short == "cuda":
            wanted, rest = torch.device("cuda", index_of(None)), ()
        elif short == "cpu":
            wanted, rest = torch.device("cpu"), ()
        else:
            if rest and isinstance(rest[0], str):
                wanted, rest = torch.device(rest[0]), rest[1:]
            if rest and isinstance(rest[0], torch.Tensor):
                g = tag(rest[0])
                wanted = torch.device("cuda", g.index) if g else torch.device("cpu")
                rest = (rest[0].dtype,)
        if wanted is None:
            target = gpu
        else:
            target = gpu_of(wanted) if wanted.type == "cuda" else None
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device",)}
        blocking = not kwargs.pop("non_blocking", False)
        rest = tuple(r for r in rest if isinstance(r, torch.dtype))
        dtype = kwargs.get("dtype") or (rest[0] if rest else source.dtype)
        if target is gpu:
            made = source.to(dtype, copy=kwargs.get("copy", False))
        else:
            made = source.to(dtype, copy=True)
            if source.requires_grad:
                raise NotImplementedError("moves of what requires grad")
        ends = [g for g in (gpu, target) if g]
        for end in ends:
            end.alive()
        if target is not gpu:
            size = made.numel() * made.element_size()
            at_work = target or gpu
            at_work.struck()
            at_work.takes(size / (NVLINK if gpu and target else PCIE))
            self._spoilt(made, gpu, target)
            if target is None and blocking:
                self._waited(gpu)
        elif gpu and made is not source:
            gpu.struck()
            gpu.takes(made.numel() * made.element_size() * 2 / (gpu.part["memory"] * 1e9))
        if target is not None:
            self._tagged(made, target)
        return made

    def _spoilt(self, made, source, target):
        for fault in FAULTS:
            if (
                fault.kind == "p2p"
                and source
                and target
                and (fault.pair in (None, (source.index, target.index)))
                and made.numel()
                and fault.due()
            ):
                made.view(-1).view(torch.uint8)[made.element_size() * (made.numel() // 2)] ^= 4
            if (
                fault.kind == "h2d"
                and target
                and not source
                and fault.hits(target.index)
                and made.numel() > 4096
                and fault.due()
            ):
                made.view(-1).view(torch.uint8)[made.numel() // 2] ^= 4
            if (
                fault.kind == "d2h"
                and source
                and not target
                and fault.hits(source.index)
                and made.numel() > 4096
                and fault.due()
            ):
                made.view(-1).view(torch.uint8)[made.numel() // 2] ^= 4

    def _copied(self, func, args, kwargs):
        into, source = args[0], args[1]
        kwargs = {k: v for k, v in kwargs.items() if k != "non_blocking"}
        target, gpu = tag(into), tag(source)
        for end in (target, gpu):
            if end:
                end.alive()
        result = func(into, source)
        size = into.numel() * into.element_size()
        at_work = gpu or target
        if at_work is None:
            return result
        at_work.struck()
        if gpu is target:
            at_work.takes(2 * size / (at_work.part["memory"] * 1e9))
        elif gpu and target:  # waits for what both ends have begun, and holds both up
            gpu.current.end = max(gpu.current.end, target.current.end)
            gpu.takes(COPY * size / NVLINK)
            target.current.end = max(target.current.end, gpu.current.end)
            self._spoilt(into, gpu, target)
        else:
            at_work.takes(COPY * size / PCIE)
            self._spoilt(into, gpu, target)
        return result

    def _product(self, func, short, args, kwargs, gpu):
        """Products that CUDA has and a CPU has not, or has other rules for."""
        text = str(func)
        if "_int_mm" in text:
            a, b, out = args[0], args[1], kwargs.get("out")
            self._need(a.dtype == b.dtype == torch.int8, "_int_mm: int8 operands expected")
            self._need(
                a.size(0) > 16, f"self.size(0) needs to be greater than 16, but got {a.size(0)}"
            )
            self._need(
                a.size(1) > 0 and a.size(1) % 8 == 0,
                f"self.size(1) needs to be greater than 0 and a multiple of 8, but got {a.size(1)}",
            )
            self._need(
                b.size(1) > 0 and b.size(1) % 8 == 0,
                f"mat2.size(1) needs to be greater than 0 and a multiple of 8, but got {b.size(1)}",
            )
            made = a.to(torch.float64) @ b.to(torch.float64)
            return self._put(made, out, torch.int32, gpu)
        if "_scaled_mm" in text:
            a, b, sa, sb = args[:4]
            self._need(
                gpu.part["cc"] >= (8, 9),
                "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+",
            )
            self._need(a.stride(1) == 1 and a.stride(0) > 1, "mat1 must be row_major")
            self._need(b.stride(0) == 1 and b.stride(1) > 1, "mat2 must be col_major")
            self._need(
                a.size(1) % 16 == 0,
                f"Trailing dimension of mat1 must be divisible by 16 but got {tuple(a.shape)}",
            )
            self._need(
                b.size(0) % 16 == 0 and b.size(1) % 16 == 0, "mat2 shape must be divisible by 16"
            )
            self._need(
                a.data_ptr() % 16 == 0 and b.data_ptr() % 16 == 0,
                "CUBLAS_STATUS_NOT_SUPPORTED: operands not aligned to 16 bytes",
            )
            self._need(
                a.stride(0) * a.element_size() % 16 == 0 and b.stride(1) % 16 == 0,
                "CUBLAS_STATUS_NOT_SUPPORTED: leading dimensions not multiples of 16 bytes",
            )
            self._need(
                sa.dtype == sb.dtype == torch.float32 and sa.numel() == sb.numel() == 1,
                "scales must be one float32 each",
            )
            made = (a.to(torch.float32) @ b.to(torch.float32)) * (sa * sb)
            return self._put(made, kwargs.get("out"), kwargs.get("out_dtype") or a.dtype, gpu)
        if short in ("mm", "matmul", "__matmul__", "bmm"):
            a, b, out = args[0], args[1], kwargs.get("out")
            self._need(
                a.dtype == b.dtype,
                f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}",
            )
            self._need(not a.dtype.is_floating_point or True, "")
            if a.dtype in (torch.int8, torch.int32, torch.int64):
                raise RuntimeError(f"\"addmm_cuda\" not implemented for '{a.dtype}'")
            asked = next(
                (x for x in (*args[2:], kwargs.get("out_dtype")) if isinstance(x, torch.dtype)),
                None,
            )
            if asked is None and out is None:
                return None
            if asked is None:
                self._need(
                    out.dtype == a.dtype,
                    f"Expected out tensor to have dtype {a.dtype}, but got {out.dtype} instead",
                )
            else:
                self._need(
                    asked == out.dtype,
                    "out_dtype must be the same as the dtype of the provided out tensor",
                )
                self._need(
                    asked == a.dtype
                    or (asked == torch.float32 and a.dtype in (torch.float16, torch.bfloat16)),
                    "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs",
                )
            same = getattr(a, "same", None)
            if same is not None:
                key = (a.data_ptr(), b.data_ptr(), b._version, a._version, out.dtype)
                if key not in same:
                    same[key] = self._times(a, b, out.dtype)
                return self._put(same[key], out, out.dtype, gpu)
            return self._put(self._times(a, b, out.dtype), out, out.dtype, gpu)
        return None

    @staticmethod
    def _times(a, b, dtype):
        if a.dtype in (torch.float16, torch.bfloat16):
            return (a.float() @ b.float()).to(dtype)
        return a @ b

    def _put(self, made, out, dtype, gpu):
        made = made.to(dtype)
        out = out.copy_(made) if out is not None else made
        for fault in faults("flip", gpu.index):
            if out.dim() == 2 and out.numel() and fault.due():
                bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
                words = out.view(bits[out.element_size()])
                words[out.shape[0] // 3, out.shape[1] // 5] ^= 1 << (
                    fault.bit % (8 * out.element_size() - 1)
                )
        return out

    @staticmethod
    def _need(sound, message):
        if not sound:
            raise RuntimeError(message)

    def _cost(self, short, args, kwargs, result, gpu):
        text = short
        if (
            any(w in text for w in ("mm", "matmul"))
            and isinstance(args[0], torch.Tensor)
            and args[0].dim() >= 2
            and len(args) > 1
            and isinstance(args[1], torch.Tensor)
            and args[1].dim() >= 2
        ):
            a, b = args[0], args[1]
            flop = 2.0 * a.numel() * b.shape[-1] * getattr(a, "stands_for", 1.0)
            kind = str(a.dtype).removeprefix("torch.")
            if kind == "float32" and torch.get_float32_matmul_precision() == "high":
                kind = "tf32"
            return flop / (gpu.part["rates"].get(kind, 10) * 1e12)
        touched = {
            id(x): x
            for x in (*tree_leaves(args), *tree_leaves(kwargs), result)
            if isinstance(x, torch.Tensor)
        }
        moved = sum(
            x.numel() * x.element_size() * x.__dict__.get("stands_for", 1.0)
            for x in touched.values()
        )
        return moved / (gpu.part["memory"] * 1e9)


MODE = OnCpu()


def install():
    """Put the stand-in into torch."""
    count = int(os.environ["REHEARSAL_GPUS"])
    part = os.environ.get("REHEARSAL_PART", "h100")
    total = int(float(os.environ.get("REHEARSAL_MEMORY_MIB", 288)) * 2**20)
    uuids = os.environ.get("REHEARSAL_UUIDS", "").split()
    uuids += [f"00000000-0000-0000-0000-{i:012d}" for i in range(len(uuids), count)]
    GPUS[:] = [Gpu(i, part, uuids[i].removeprefix("GPU-"), total) for i in range(count)]
    torch.version.cuda = "13.0"
    cuda = torch.cuda

    def properties(device=None):
        gpu = gpu_of(device)
        return types.SimpleNamespace(
            name=gpu.part["name"],
            major=gpu.part["cc"][0],
            minor=gpu.part["cc"][1],
            total_memory=gpu.total,
            multi_processor_count=gpu.part["sms"],
            is_integrated=0,
            is_multi_gpu_board=0,
            uuid=gpu.uuid,
            L2_cache_size=50 * 2**20,
            regs_per_multiprocessor=65536,
            warp_size=32,
            gcnArchName="",
        )

    def set_device(device):
        index = gpu_of(device).index
        GPUS[index].alive()
        if index >= 0:
            HERE.device = index

    def synchronize(device=None):
        gpu_of(device).settle()

    def empty_cache():
        if not _initialized:
            return
        for gpu in GPUS:
            held = gpu.held()
            if gpu.reserved > held:
                gpu.alive()
            gpu.reserved = held

    @contextlib.contextmanager
    def stream(new):
        if new is None:
            yield
            return
        index = new.gpu.index
        device, before = HERE.device, new.gpu.current
        HERE.device, HERE.streams[index] = index, new
        try:
            yield new
        finally:
            HERE.device, HERE.streams[index] = device, before

    def info(device=None):
        gpu = gpu_of(device)
        gpu.alive()
        return gpu.free(), gpu.total

    def reach(device, peer):
        lazy_init()
        blocked = any(f.kind == "no_p2p" for f in FAULTS)
        return index_of(device) != index_of(peer) and not blocked

    for name, value in dict(
        is_available=lambda: True,
        device_count=lambda: len(GPUS),
        _lazy_init=lazy_init,
        init=lazy_init,
        is_initialized=lambda: _initialized,
        set_device=set_device,
        current_device=lambda: (lazy_init(), HERE.device)[1],
        get_device_properties=properties,
        get_device_capability=lambda d=None: gpu_of(d).part["cc"],
        get_device_name=lambda d=None: gpu_of(d).part["name"],
        mem_get_info=info,
        empty_cache=empty_cache,
        synchronize=synchronize,
        Stream=Stream,
        Event=Event,
        stream=stream,
        current_stream=lambda d=None: gpu_of(d).current,
        default_stream=lambda d=None: gpu_of(d).default,
        can_device_access_peer=reach,
        memory_allocated=lambda d=None: gpu_of(d).held(),
        memory_reserved=lambda d=None: gpu_of(d).reserved,
    ).items():
        setattr(cuda, name, value)
    cuda.nccl.version = lambda: (2, 29, 3)
    real = torch.Generator

    def generator(device="cpu"):
        return real("cpu")

    torch.Generator = generator
    _threads()
    _nccl()
    MODE.__enter__()


def _threads():
    run = threading.Thread.run

    def with_mode(self):
        with OnCpu():
            run(self)

    threading.Thread.run = with_mode


def _nccl():
    """NCCL by gloo; where gloo says that a peer is lost, NCCL waits and then aborts."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    state = {"timeout": None}
    init, reduce = dist.init_process_group, dist.all_reduce

    def init_process_group(backend=None, *args, device_id=None, timeout=None, **kwargs):
        state["timeout"] = timeout if backend == "nccl" else None
        if backend == "nccl":
            assert device_id is not None and device_id.type == "cuda"
            GPUS[device_id.index].alive()
            backend = "gloo"
        return init(backend, *args, timeout=timeout, **kwargs)

    def all_reduce(tensor, *args, **kwargs):
        gpu = tag(tensor)
        if state["timeout"] is None:
            return reduce(tensor, *args, **kwargs)
        assert gpu is not None, "No backend type associated with device type cpu"
        gpu.alive()
        begun = time.perf_counter()
        for fault in faults("nccl_hang", gpu.index):
            if fault.due():
                time.sleep(3600)
        try:
            result = reduce(tensor, *args, **kwargs)
        except RuntimeError as exc:
            left = state["timeout"].total_seconds() - (time.perf_counter() - begun)
            time.sleep(max(0.0, left))
            sys.stderr.write(
                "[rank?]:[E] ProcessGroupNCCL.cpp: [PG ID 0] Process group watchdog thread "
                "terminated with exception: Watchdog caught collective operation timeout: "
                f"WorkNCCL(OpType=ALLREDUCE) ran for {max(0.0, left) * 1e3:.0f} milliseconds before timing "
                f"out. (stand-in: {exc})\n"
            )
            sys.stderr.flush()
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            os.abort()
        for fault in faults("sum", gpu.index):
            if tensor.numel() > 1000 and fault.due():
                tensor.view(-1)[5] += 1
        world = dist.get_world_size()
        size = tensor.numel() * tensor.element_size()
        gpu.struck()
        gpu.takes(20e-6 + 2 * (world - 1) / world * size / 350e9)
        return result

    dist.init_process_group, dist.all_reduce = init_process_group, all_reduce
