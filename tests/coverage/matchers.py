"""
What other tools look for, each with its counterpart here or the reason that there is none.

The rules are those of leptonai/gpud (commit 4a8de33, components/*/kmsg_matcher.go and
log_matcher.go), kubernetes/node-problem-detector (config/kernel-monitor.json,
readonly-monitor.json, disk-log-message-filelog.json), NVIDIA/NVSentinel (syslog health
monitor) and Azure/azurehpc-health-checks (customTests). The lines are those that the rules
are for, as the kernel writes them; where a rule has a line, a test reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

GPUD, NPD, SENTINEL, AZURE = "gpud", "node-problem-detector", "NVSentinel", "azurehpc"


@dataclass(frozen=True, slots=True)
class Matcher:
    """
    A rule of another tool, by the name that the tool gives it.

    Of a *line* the *check* makes a finding *code*; without a line, *check* is what measures the
    same. Where *check* is empty, *note* is the reason.
    """

    tool: str
    name: str
    check: str = ""
    code: str = ""
    line: str = ""
    note: str = ""


def _in_kernel_log(tool: str, name: str, code: str, line: str) -> Matcher:
    return Matcher(tool, name, "kernel_log", code, line)


SXID = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): "
MATCHERS = (
    Matcher(
        GPUD,
        "xid",
        "xid",
        "xid_79",
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
        "the bus.",
    ),
    Matcher(
        GPUD,
        "xid, extended (NVLink 5)",
        "xid",
        "xid_149_fatal",
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 "
        "0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    ),
    Matcher(
        GPUD,
        "fallen off the bus, one line",
        "xid",
        "xid_79",
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
    ),
    Matcher(
        GPUD,
        "fallen off the bus, several lines",
        "xid",
        "xid_79",
        "NVRM: The NVIDIA GPU 0000:18:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this "
        "system has\\x0aNVRM: fallen off the bus and is not responding to commands.",
    ),
    Matcher(GPUD, "sxid", "xid", "sxid_fatal", f"{SXID}20034, Fatal, Link 30 LTSSM Fault Up"),
    _in_kernel_log(
        GPUD,
        "nvlink_post_rx_detect_failure",
        "nvlink_detect_failed",
        "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
    ),
    _in_kernel_log(
        GPUD,
        "nvidia_nccl_segfault_in_libnccl",
        "gpu_library_segfault",
        "pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp "
        "00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]",
    ),
    _in_kernel_log(
        GPUD,
        "nvidia_peermem_invalid_context",
        "peermem_invalid",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping "
        "further processing",
    ),
    _in_kernel_log(
        GPUD,
        "pci_power_insufficient",
        "mlx5_power",
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power "
        "on the PCIe slot (27W).",
    ),
    _in_kernel_log(
        GPUD,
        "port_module_high_temperature",
        "mlx5_temperature",
        "mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, "
        "High Temperature",
    ),
    _in_kernel_log(
        GPUD,
        "access_reg_failed",
        "mlx5_command_refused",
        "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) "
        "op_mod(0x1) failed, status bad resource(0x5), syndrome (0x305684), err(-22)",
    ),
    _in_kernel_log(
        GPUD,
        "cpu_blocked_too_long",
        "hung_task",
        "INFO: task jfsmount:136986 blocked for more than 120 seconds.",
    ),
    _in_kernel_log(
        GPUD,
        "cpu_soft_lockup",
        "soft_lockup",
        "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",
    ),
    _in_kernel_log(
        GPUD,
        "raid_array_failure",
        "raid_disk_failed",
        "md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.",
    ),
    _in_kernel_log(
        GPUD,
        "filesystem_read_only",
        "fs_read_only",
        "EXT4-fs (md0): Remounting filesystem read-only",
    ),
    _in_kernel_log(
        GPUD,
        "nvme_path_failure",
        "nvme_no_path",
        "block nvme0n1: no available path - failing I/O",
    ),
    _in_kernel_log(
        GPUD,
        "nvme_controller_timeout",
        "nvme_reset",
        "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller",
    ),
    _in_kernel_log(
        GPUD,
        "nvme_device_disabled",
        "nvme_dead",
        "nvme nvme4: Disabling device after reset failure: -19",
    ),
    _in_kernel_log(
        GPUD,
        "beyond_end_of_device",
        "beyond_end_of_device",
        "kworker/u203:1: attempt to access beyond end of device",
    ),
    _in_kernel_log(
        GPUD,
        "buffer_io_error",
        "disk_write_lost",
        "Buffer I/O error on dev dm-0, logical block 1308098575, lost async page write",
    ),
    _in_kernel_log(
        GPUD,
        "superblock_write_error",
        "ext4_superblock",
        "EXT4-fs (dm-0): I/O error while writing superblock",
    ),
    _in_kernel_log(
        GPUD,
        "OOM",
        "oom",
        "postgres invoked oom-killer: gfp_mask=0x201d2, order=0, oomkilladj=0",
    ),
    _in_kernel_log(
        GPUD,
        "nfs_server_not_responding",
        "nfs_not_responding",
        "nfs: server 10.0.0.7 not responding, timed out",
    ),
    _in_kernel_log(GPUD, "nfs_server_ok", "nfs_answers", "nfs: server 10.0.0.7 OK"),
    _in_kernel_log(
        GPUD,
        "nfs_lock_reclaim_failed",
        "nfs_lock_lost",
        "NFS: nfs4_reclaim_open_state: Lock reclaim failed!",
    ),
    Matcher(
        GPUD,
        "nfs_writeback_hang",
        note="a frame of a stack; the line of the hung task stands before it (`hung_task`)",
    ),
    _in_kernel_log(
        GPUD,
        "vfs_file_max_limit_reached",
        "file_max",
        "VFS: file-max limit 1000000 reached",
    ),
    _in_kernel_log(
        GPUD,
        "kernel_panic",
        "panic",
        "Kernel panic - not syncing: hung_task: blocked tasks",
    ),
    Matcher(
        GPUD,
        "fabricmanager_nvswitch_fatal_error",
        "xid",
        "sxid_fatal",
        f"{SXID}20034, Fatal, Link 33 LTSSM Fault Up",
        "the kernel logs the same SXid as the Fabric Manager",
    ),
    Matcher(
        GPUD,
        "fabricmanager_nvswitch_non_fatal_error",
        "xid",
        "sxid_nonfatal",
        f"{SXID}12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        "the same",
    ),
    Matcher(
        GPUD,
        "fabricmanager_nvswitch_topology_mismatch",
        "nvlink",
        note="the manager ends, and the driver says that the fabric was never set up",
    ),
    Matcher(
        GPUD,
        "fabricmanager_nvswitch_nvlink_failure",
        note="a request of a job that the Fabric Manager refused, in its own log, which is not "
        "read; links, routes and fabric are asked of the driver (`nvlink`)",
    ),
    Matcher(
        GPUD,
        "fabricmanager_nvswitch_nothing_to_do",
        note="no fault: the node has no NVSwitch",
    ),
    _in_kernel_log(
        NPD,
        "OOMKilling",
        "oom",
        "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
    ),
    _in_kernel_log(
        NPD,
        "TaskHung, DockerHung",
        "hung_task",
        "INFO: task docker:20744 blocked for more than 120 seconds.",
    ),
    _in_kernel_log(
        NPD,
        "UnregisterNetDevice",
        "netdevice_stuck",
        "unregister_netdevice: waiting for veth1a2b to become free. Usage count = 3",
    ),
    _in_kernel_log(
        NPD,
        "KernelOops",
        "oops",
        "BUG: unable to handle kernel NULL pointer dereference at 0000000000000038",
    ),
    _in_kernel_log(
        NPD,
        "Ext4Error",
        "fs_error",
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory",
    ),
    _in_kernel_log(
        NPD,
        "Ext4Warning",
        "fs_error",
        "EXT4-fs warning (device sda1): ext4_end_bio:347: I/O error 10 writing to inode 12",
    ),
    _in_kernel_log(
        NPD,
        "IOError",
        "disk_io_error",
        "Buffer I/O error on dev sda1, logical block 123456, async page read",
    ),
    _in_kernel_log(
        NPD,
        "XfsHasShutdown",
        "xfs_shutdown",
        "XFS (sda1): I/O Error Detected. Shutting down filesystem",
    ),
    _in_kernel_log(
        NPD,
        "MemoryReadError",
        "edac_corrected",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 "
        "page:0x2d offset:0x80 grain:32 syndrome:0x0)",
    ),
    _in_kernel_log(
        NPD,
        "CperHardwareErrorCorrected",
        "ghes_corrected",
        "{1}[Hardware Error]: event severity: corrected",
    ),
    _in_kernel_log(
        NPD,
        "CperHardwareErrorRecoverable",
        "ghes_recoverable",
        "{1}[Hardware Error]: event severity: recoverable",
    ),
    _in_kernel_log(
        NPD,
        "CperHardwareErrorFatal",
        "ghes_fatal",
        "{1}[Hardware Error]: event severity: fatal",
    ),
    _in_kernel_log(
        NPD,
        "FilesystemIsReadOnly",
        "fs_read_only",
        "EXT4-fs (sda1): Remounting filesystem read-only",
    ),
    Matcher(
        NPD,
        "DiskBadBlock",
        "host",
        note="a line of smartd; the disk itself is asked for its pending and uncorrectable sectors",
    ),
    Matcher(
        SENTINEL,
        "SysLogsXIDError",
        "xid",
        "xid_119",
        "NVRM: Xid (PCI:0002:00:00): 119, pid=7, name=x, Timeout after 6s",
    ),
    Matcher(
        SENTINEL,
        "SysLogsSXIDError",
        "xid",
        "sxid_fatal",
        f"{SXID}20034, Fatal, Link 3 LTSSM Fault Up",
    ),
    Matcher(
        SENTINEL,
        "SysLogsGPUFallenOff",
        "xid",
        "xid_79",
        "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this "
        "system has\\x0aNVRM: fallen off the bus and is not responding to commands.",
    ),
    _in_kernel_log(
        SENTINEL,
        "SysLogsNICDriverError",
        "mlx5_health",
        "mlx5_core 0000:5c:00.0: poll_health:825:(pid 0): device's health compromised - reached "
        "miss count",
    ),
    Matcher(AZURE, "check_gpu_count", "inventory"),
    Matcher(AZURE, "check_nvme_count", "inventory"),
    Matcher(AZURE, "check_gpu_xid", "xid"),
    Matcher(AZURE, "check_gpu_ecc", "ecc"),
    Matcher(AZURE, "check_gpu_clock_throttling", "thermal"),
    Matcher(AZURE, "check_app_gpu_clocks", "gpu_setup"),
    Matcher(AZURE, "check_gpu_persistence", "gpu_setup"),
    Matcher(AZURE, "check_vbios_version", "gpu_setup"),
    Matcher(AZURE, "check_nvlink_status", "nvlink"),
    Matcher(AZURE, "check_gpu_bw", "pcie_bandwidth", note="and `p2p` between GPUs"),
    Matcher(AZURE, "check_nccl_allreduce", "allreduce"),
    Matcher(AZURE, "check_rccl_allreduce", "allreduce", note="rehearsed only (docs/amd.md)"),
    Matcher(AZURE, "check_ib_link_flapping", "nic"),
    Matcher(
        AZURE,
        "check_cpu_stream",
        "host_memory",
        note="every word is verified; its bandwidth is not measured",
    ),
    Matcher(
        AZURE,
        "check_hw_topology",
        "inventory",
        note="PCI addresses and NUMA nodes against the last run, not against a file",
    ),
    Matcher(
        AZURE,
        "check_ib_bw_gdr, check_ib_bw_non_gdr",
        note="no RDMA traffic is sent: `nic` reads state, speed, lanes and errors of each port",
    ),
    Matcher(
        AZURE,
        "check_nccl_allreduce_ib_loopback",
        note="the same: `allreduce` uses the fastest way in the node, which is NVLink",
    ),
    Matcher(
        AZURE,
        "check_gpu_xgmi",
        note="the telemetry of AMD's GPUs is not observable (docs/amd.md); `p2p` loads the links",
    ),
)
