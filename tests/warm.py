"""
Processes of Python that need not import the engine: forked from one that has.

To start Python and to import the command line takes several times as long as most
commands do. What such a process does is its own, as in any other; what only a fresh
one can show (what is imported when, an encoding, a closed stream) needs a fresh one.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from pkgutil import iter_modules
from types import CodeType
from typing import Any

READ_AT_START = ("COVERAGE_", "LD_", "LC_", "LANG", "OMP_", "PYTHON")
"""How the variables begin that a process reads when it starts, and never again."""
MAX_REQUEST_BYTES = 2**17
NUMBER = struct.Struct("i")
PRELOADED = (
    "hpcverify.entry",
    "hpcverify.run.worker",
    "hpcverify.telemetry.nvml",
    "hpcverify.telemetry.probe",
    "pynvml",
)


def run_warm(
    arguments: list[str],
    environment: Mapping[str, str],
    *,
    code: str = "",
    cwd: Path | None = None,
    preload: str = "",
) -> subprocess.CompletedProcess[str]:
    """
    Run ``hpcverify`` with *arguments*, or Python *code* as ``-W error -c`` does.

    The process that it is forked from has called ``install`` of the module *preload*.
    """
    request = {
        "arguments": arguments,
        "environment": dict(environment),
        "code": code,
        "cwd": str(cwd or Path.cwd()),
    }
    at_start = {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_START) and name != "PYTHONPATH"
    }
    server = _start_server(tuple(sorted(at_start.items())), preload)
    pipes = {name: os.pipe() for name in ("stdout", "stderr", "status")}
    writing = [pipe[1] for pipe in pipes.values()]
    try:
        socket.send_fds(server, [json.dumps(request).encode()], [0, *writing])
    finally:
        for descriptor in writing:
            os.close(descriptor)
    said = _read_all({name: pipe[0] for name, pipe in pipes.items()})
    _, status = (number for (number,) in NUMBER.iter_unpack(said["status"]))
    return subprocess.CompletedProcess(
        arguments, status, said["stdout"].decode(), said["stderr"].decode()
    )


def _read_all(pipes: Mapping[str, int]) -> dict[str, bytes]:
    """Read each pipe to its end; end the process if we are interrupted meanwhile."""
    said = dict.fromkeys(pipes, b"")
    try:
        with selectors.DefaultSelector() as selector:
            for name, descriptor in pipes.items():
                selector.register(descriptor, selectors.EVENT_READ, name)
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, 2**16)
                    said[key.data] += data
                    if not data:
                        selector.unregister(key.fd)
    except BaseException:
        if len(said["status"]) == NUMBER.size:
            os.kill(NUMBER.unpack(said["status"])[0], signal.SIGKILL)
        raise
    finally:
        for descriptor in pipes.values():
            os.close(descriptor)
    return said


@cache
def _start_server(at_start: tuple[tuple[str, str], ...], preload: str) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
    server = subprocess.Popen(
        [sys.executable, "-P", __file__, str(theirs.fileno()), preload],
        env={"PATH": os.environ["PATH"], **dict(at_start)},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
    )
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> CodeType | None:
    """Fork a process for each of *requests*; in that process, return what it is to run."""
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not requests:
                pid, status = key.data
                selector.unregister(key.fd)
                os.close(key.fd)
                os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
                os.close(status)
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
            if not message:
                os._exit(0)
            *streams, status = descriptors
            pid = os.fork()
            if not pid:
                _close_others(selector, requests, status)
                return _begin(message, streams)
            for descriptor in streams:
                os.close(descriptor)
            os.write(status, NUMBER.pack(pid))
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))


def _close_others(selector: selectors.BaseSelector, requests: socket.socket, status: int) -> None:
    """Close what the server needs, and what belongs to processes that run beside this one."""
    for key in selector.get_map().values():
        if key.fileobj is not requests:
            os.close(key.fd)
            os.close(key.data[1])
    selector.close()
    requests.close()
    os.close(status)


def _begin(message: bytes, streams: Sequence[int]) -> CodeType | None:
    for number, (name, descriptor) in enumerate(
        zip(("stdin", "stdout", "stderr"), streams, strict=True)
    ):
        os.dup2(descriptor, number)
        os.close(descriptor)
        # The old one remembers what it was opened on.
        old: TextIOWrapper = getattr(sys, name)
        new = open(number, old.mode, 1, old.encoding, old.errors, closefd=False)  # noqa: SIM115 - for as long as we live
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    return _become(json.loads(message))


def _become(request: dict[str, Any]) -> CodeType | None:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))
    sys.argv[1:] = request["arguments"]
    if not request["code"]:
        sys.argv[0] = str(Path(sys.executable).with_name("hpcverify"))
        return None
    sys.argv[0] = "-c"
    sys.path.insert(0, "")
    warnings.simplefilter("error")
    return compile(request["code"], "<string>", "exec")


def _preload(first: str) -> None:
    if first:
        sys.path.append(str(Path(__file__).resolve().parents[1]))
        import_module(first).install()
    for name in PRELOADED:
        import_module(name)
    from hpcverify.plan.catalog import list_check_names, load_check  # noqa: PLC0415 - likewise

    for _, name, _ in iter_modules(import_module("hpcverify.commands").__path__):
        import_module(f"hpcverify.commands.{name}")
    for name in list_check_names():
        load_check(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve; each process that comes of it goes on from here."""
    _preload(sys.argv[2])
    code = _serve(socket.socket(fileno=int(sys.argv[1])))
    status: Any = 0
    try:
        if code is None:
            from hpcverify.entry import main as run_command  # noqa: PLC0415 - loaded long ago

            run_command()
        else:
            exec(code, {"__name__": "__main__"})  # noqa: S102 - the tests' own
    except SystemExit as exc:
        status = exc.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)  # noqa: T201 - as the interpreter does
        status = 1
    # To take all modules apart would copy each page that we share with the server.
    atexit._run_exitfuncs()  # there is no other way
    sys.stdout.flush()
    os._exit(int(status or 0))


if __name__ == "__main__":
    main()
