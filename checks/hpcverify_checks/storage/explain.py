"""What a failed access means: a fault of the disk, of its server, or of neither."""

from __future__ import annotations

import errno
import os

import hpcverify.check as hv
from hpcverify.processes import explain_errno
from hpcverify_checks.storage.fio_runner import CORRUPTION_ERRNOS, FaultError
from hpcverify_checks.storage.scratch import ScratchSite

NO_SPACE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
DENIED_ERRNOS = frozenset({errno.EACCES, errno.EPERM})
IO_ERROR_ERRNOS = frozenset(
    {
        errno.EIO,
        errno.ENODATA,  # a medium error (blk_status_to_errno in block/blk-core.c)
        errno.EREMOTEIO,  # a target error
        errno.ENOLINK,  # a transport error
        errno.ETIMEDOUT,
        errno.ENXIO,
        errno.ENODEV,
        errno.EUCLEAN,  # ext4, xfs and btrfs: damaged structure
        errno.EBADMSG,  # the same, found by a checksum
        errno.EROFS,  # was writable at first: an error turned it read-only
    }
)
LOST_SERVER_ERRNOS = frozenset(
    {
        errno.ESTALE,  # NFS: the file is gone, or the server was set up anew
        errno.ENOTCONN,  # FUSE: its process died
        errno.ESHUTDOWN,  # Lustre: evicted
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EPIPE,
    }
)
"""What a network file system says besides."""
NO_AIO_HINT = "fio gets no asynchronous I/O: compare fs.aio-nr with fs.aio-max-nr, and raise that"


def explain_fault(fault: FaultError, site: ScratchSite) -> hv.Finding:
    """
    Say what a failed access means.

    Raises:
        FaultError: an error that we do not know.

    """
    if fault.number in NO_SPACE_ERRNOS:
        raise hv.Unable(
            f"{site.folder} filled up during the test ({fault}): free some space or raise "
            "the quota",
            hv.Cause.NO_SPACE,
        ) from fault
    if fault.number in DENIED_ERRNOS:
        raise hv.Unable(
            f"{site.folder} cannot be used ({fault}): fix its permissions", hv.Cause.DENIED
        ) from fault
    if fault.number == errno.EFBIG:
        raise hv.Unable(
            f"{site.folder} holds no file that is large enough ({fault}): raise ulimit -f, or "
            "choose another scratch directory",
            hv.Cause.MISCONFIGURED,
            hv.Remedy.FIX_CONFIGURATION,
        ) from fault
    if hint := NO_AIO_HINT if fault.number == errno.EAGAIN else explain_errno(fault.number):
        raise hv.Unable(f"{fault}: {hint}", hv.Cause.NO_RESOURCES, hv.Remedy.INSPECT) from fault
    evidence = {**fault.evidence, "mount": str(site.mount.point)}
    if fault.number in CORRUPTION_ERRNOS:
        text = f"data read back differs from what was written: {fault}"
        if holds := fault.evidence.get("holds"):
            text += f"; the block holds {holds}"
        if site.remote:
            text += "; it may be the server's fault: run storage there on another node"
            return hv.Finding("remote_corruption", site.part, text, evidence)
        return hv.Finding("corruption", site.part, text, evidence)
    is_lost_server = site.remote and fault.number in LOST_SERVER_ERRNOS
    if is_lost_server or fault.number in IO_ERROR_ERRNOS:
        code = "remote_io_error" if site.remote else "io_error"
        text = f"{os.strerror(fault.number)}: {fault}"
        return hv.Finding(code, site.part, text, evidence)
    raise fault
