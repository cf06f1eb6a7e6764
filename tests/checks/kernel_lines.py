"""
Lines of the kernel: those of faults, by the row that speaks for them, and ordinary ones.

They follow the format strings of several kernels, from 3.10 (RHEL 7) to 6.12, in the files
that the table names. `ORDINARY` are what healthy machines write that looks like a fault, and
what a user's program provokes outside of the libraries of NVIDIA.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

FAULTY: Mapping[str, Sequence[str]] = {
    "mce_uncorrected": (
        "mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 0: b200000000070005",
        "mce: [Hardware Error]: CPU 31: Machine Check: 0 Bank 14: bc000400012100c0",
        "[Hardware Error]: CPU 9: Machine Check Exception: 4 Bank 5: fe00000000800400",
        "[Hardware Error]: Uncorrected, software restartable error.",
        "[Hardware Error]: System Fatal error.",
        "mce: Uncorrected hardware memory error in user-access at 3f1e2a1000",
        "mce: CPUs not responding to MCE broadcast (may include false positives): 7",
        (
            "[Hardware Error]: CPU:64 (19:1:1) "
            "MC18_STATUS[Over|UE|MiscV|AddrV|-|TCC|SyndV|-|-|-|-]: 0xfc2040000400011b"
        ),
        "EDAC sbridge MC0: CPU 0: Machine Check Exception: 5 Bank 7: be00000000010091",
        "EDAC skx MC2: CPU 24: Machine Check Event: 0x0 Bank 13: 0xbc00000000100153",
        "mce: Uncorrected error: killing process",
    ),
    "mce_corrected": (
        "mce: [Hardware Error]: CPU 24: Machine Check: 0 Bank 7: 8c00004000010093",
        (
            "[Hardware Error]: CPU:2 (17:31:0) "
            "MC18_STATUS[Over|CE|MiscV|AddrV|-|-|SyndV|CECC|-|-|-]: 0xdc2040000000011b"
        ),
        "EDAC skx MC1: CPU 0: Machine Check Event: 0x0 Bank 7: 0x8c00004000010090",
    ),
    "memory_failure": (
        "Memory failure: 0x3f12a: Sending SIGBUS to python3:4711 due to hardware memory corruption",
        "Memory failure: 0x3f12a: recovery action for dirty LRU page: Recovered",
        "Memory failure: 0x80003: recovery action for reserved kernel page: Ignored",
        "Memory failure: 0x3f12a: Killing python3:4711 due to hardware memory corruption",
        "Memory failure: 0xe16677: already hardware poisoned",
        (
            "Memory failure: 0x3f1: forcibly killing python3:99 because of failure to unmap "
            "corrupted page"
        ),
        "Memory failure: 0x101c: reserved kernel page still referenced by 1 users",
        "MCE 0x3a55e: Killing python3:4711 due to hardware memory corruption",
    ),
    "memory_page_offlined": (
        "soft_offline: 0x1f4a2: page already poisoned",
        "Soft offlining pfn 0x1f4a2 at process virtual address 0x7f0000000000",
        "RAS: Soft-offlining pfn: 0x1234",
    ),
    "edac_uncorrected": (
        (
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0 "
            "page:0x3f12 offset:0x0 grain:32 - err_code:0x0101:0x0090 socket:0)"
        ),
        "EDAC MC1: UE page 0x3f12, offset 0x0, grain 0, row 2, labels ...: i3200 UE",
        'EDAC MC0: UE row 3, channel-a= 0 channel-b= 1 labels "-": NON-FATAL',
        "EDAC MC3: 1 UE on mc#3csrow#1channel#4 (csrow:1 channel:4 page:0x1 offset:0x0 grain:64)",
        "EDAC MC0: UE - no information available: INTERNAL ERROR",
    ),
    "edac_corrected": (
        (
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 "
            "page:0x2d offset:0x80 grain:32 syndrome:0x0 - area:DRAM err_code:0x0101:0x0090)"
        ),
        'EDAC MC0: CE page 0x1b3f, offset 0xc40, grain 8, syndrome 0x1c, row 1, label "": amd64',
        "EDAC MC2: 4 CE on mc#2csrow#0channel#3 (csrow:0 channel:3 page:0x9 offset:0x1 grain:64)",
    ),
    "edac_pci": ("EDAC PCI: Master Data Parity Error on 0000:03:00.0",),
    "ghes_fatal": ("{3}[Hardware Error]: event severity: fatal",),
    "bert_fatal": ("[Hardware Error]: event severity: fatal",),
    "ghes_recoverable": ("{1}[Hardware Error]: event severity: recoverable",),
    "ghes_corrected": ("{12}[Hardware Error]: event severity: corrected",),
    "cpu_throttled": (
        "mce: CPU12: Core temperature above threshold, cpu clock throttled (total events = 1)",
        "CPU3: Package temperature above threshold, cpu clock throttled (total events = 512)",
        "mce: CPU0: Core temperature is above threshold, cpu clock is throttled (total = 2)",
    ),
    "critical_temperature": (
        "thermal thermal_zone0: acpitz: critical temperature reached",
        "thermal thermal_zone2: critical temperature reached (105 C), shutting down",
    ),
    "nmi_hardware": (
        "NMI: PCI system error (SERR) for reason b1 on CPU 0.",
        "NMI: IOCK error (debug interrupt?) for reason 60 on CPU 0.",
    ),
    "aer_fatal": (
        (
            "nvidia 0000:b3:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction "
            "Layer, (Receiver ID)"
        ),
        (
            "nvme 0000:01:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type="
            "Inaccessible, (Unregistered Agent ID)"
        ),
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
        "pcieport 0000:80:02.0: AER: Uncorrected (Fatal) error received: id=8010",
    ),
    "aer_nonfatal": (
        (
            "mlx5_core 0000:5c:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type="
            "Transaction Layer, (Requester ID)"
        ),
        "pcieport 0000:00:01.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:5c:00.0",
        (
            "pcieport 0000:00:01.0: AER: Uncorrectable (Non-Fatal) error message received from "
            "0000:5c:00.0"
        ),
        "pcieport 0000:00:1c.0: AER: Uncorrected (Non-Fatal) error received: id=00e0",
    ),
    "aer_corrected": (
        (
            "pcieport 0000:80:03.1: PCIe Bus Error: severity=Corrected, type=Physical Layer, "
            "id=8019(Receiver ID)"
        ),
        (
            "nvidia 0000:b3:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, "
            "(Transmitter ID)"
        ),
        "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0",
        "pcieport 0000:00:01.0: AER: Multiple Correctable error message received from 0000:01:00.0",
        "pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5",
    ),
    "aer_unrecovered": (
        "pcieport 0000:00:01.0: AER: device recovery failed",
        "nvidia 0000:b3:00.0: AER: can't recover (no error_detected callback)",
    ),
    "dpc_contained": (
        "pcieport 0000:a0:01.0: DPC: containment event, status:0x1f01 source:0x0000",
    ),
    "pcie_link_down": (
        "pcieport 0000:a0:01.0: pciehp: Slot(12): Link Down",
        "pcieport 0000:a0:01.0: pciehp: Slot(3-1): Card not present",
        "pcieport 0000:b2:04.0: pciehp: Slot(17): No link",
        "pcieport 0000:b2:04.0: pciehp: Slot(17): Power fault",
        "pcieport 0000:b2:04.0: pciehp: Slot(17): Cannot train link: status 0x0001",
        "pcieport 0000:3c:01.0: pciehp: link training error: status 0x0001",
    ),
    "pcie_link_retrained": (
        (
            "pcieport 0000:a0:01.0: broken device, retraining non-functional downstream link at "
            "2.5GT/s"
        ),
        "pcieport 0000:a0:01.0: retraining failed",
    ),
    "pci_unreachable": (
        "vfio-pci 0000:b3:00.0: not ready 65535ms after FLR; giving up",
        "nvidia 0000:b3:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        "pci 0000:b3:00.0: Unable to change power state from D3hot to D0, device inaccessible",
        "nvme 0000:3d:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
        "nvidia 0000:b3:00.0: Refused to change power state, currently in D3",
    ),
    "iommu_fault": (
        (
            "DMAR: [DMA Read NO_PASID] Request device [5c:00.0] fault addr 0xffffc000 [fault "
            "reason "
            "0x06] PTE Read access is not set"
        ),
        (
            "DMAR: [DMA Write] Request device [3b:00.0] PASID ffffffff fault addr 7f1c [fault "
            "reason "
            "05] PTE Write access is not set"
        ),
        (
            "nvme 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000a address=0x1000 "
            "flags=0x0020]"
        ),
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=c1:00.0 domain=0x0000 address=0x0 flags=0x0]",
        "arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:",
        "DMAR:[DMA Write] Request device [0000:02:00.0] fault addr 7f6000",
        "DMAR: VT-d detected Invalidation Time-out Error: SID 0",
        (
            "iommu ivhd0: AMD-Vi: Event logged [INVALID_DEVICE_REQUEST device=63:00.0 "
            "pasid=0x00000 address=0xfffffffdf8000000 flags=0x0a00]"
        ),
        "AMD-Vi: Completion-Wait loop timed out",
        (
            "arm-smmu-v3 arm-smmu-v3.5.auto: CMD_SYNC timeout at 0x00000133 [hwprod "
            "0x00000133, hwcons 0x00000130]"
        ),
    ),
    "mlx5_health": (
        (
            "mlx5_core 0000:5c:00.0: poll_health:825:(pid 0): device's health compromised - "
            "reached "
            "miss count"
        ),
        "mlx5_core 0000:5c:00.0: poll_health:808:(pid 0): Fatal error 1 detected",
        (
            "mlx5_core 0000:5c:00.0: print_health_info:432:(pid 0): Health issue observed, irisc "
            "not "
            "responding, severity(2) CRITICAL:"
        ),
        (
            "mlx5_core 0000:5c:00.0: mlx5_health_try_recover:328:(pid 9): health recovery flow "
            "aborted, PCI reads still not working"
        ),
        (
            "mlx5_core 0000:05:00.0: print_health_info:429:(pid 0): Health issue observed, "
            "unrecoverable hardware error, severity(3) ERROR:"
        ),
        "mlx5_core 0000:3b:00.0: health_care:154:(pid 1): handling bad device here",
        "mlx5_core 0000:3b:00.0: synd 0x1: firmware internal error",
        (
            "mlx5_core 0000:81:00.0: mlx5_function_setup:1137:(pid 400): Firmware over "
            "120000 MS in pre-initializing state, aborting"
        ),
        "mlx5_core 0000:3b:00.0: mlx5_cmd_exec:1:(pid 8): device in error state",
    ),
    "mlx5_health_warning": (
        (
            "mlx5_core 0000:5c:00.0: print_health_info:432:(pid 0): Health issue observed, High "
            "temperature, severity(4) WARNING:"
        ),
        "mlx5_core 0000:3b:00.0: synd 0x10: High temperature",
    ),
    "mlx5_command_timeout": (
        (
            "mlx5_core 0000:5c:00.0: wait_func:1108:(pid 812): MANAGE_PAGES(0x108) timeout. Will "
            "cause a leak of a command resource"
        ),
        (
            "mlx5_core 0000:5c:00.0: wait_func_handle_exec_timeout:1146:(pid 7): cmd[0]: "
            "CREATE_CQ(0x400) No done completion"
        ),
        (
            "mlx5_core 0000:5c:00.0: wait_func:1195:(pid 7): QUERY_VPORT_COUNTER(0x770) timeout. "
            "Will cause a leak of a command resource"
        ),
    ),
    "mlx5_command_late": (
        (
            "mlx5_core 0000:5c:00.0: wait_func_handle_exec_timeout:1140:(pid 7): cmd[3]: "
            "ACCESS_REG(0x805) recovered after timeout"
        ),
    ),
    "mlx5_command_refused": (
        (
            "mlx5_core 0000:5c:00.0: mlx5_cmd_out_err:838:(pid 144): ACCESS_REG(0x805) op_mod(0x1) "
            "failed, status bad resource(0x5), syndrome (0x305684), err(-22)"
        ),
        (
            "mlx5_core 0000:5c:00.0: mlx5_cmd_check:794:(pid 144): ACCESS_REG(0x805) op_mod(0x1) "
            "failed, status bad parameter(0x3), syndrome (0x1c0bc)"
        ),
    ),
    "mlx5_power": (
        (
            "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268): Detected insufficient power on "
            "the PCIe slot (27W)."
        ),
    ),
    "mlx5_temperature": (
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
        (
            "mlx5_core 0000:5c:00.0: temp_warn:210:(pid 0): High temperature on sensors with bit "
            "set "
            "0 1"
        ),
    ),
    "mlx5_cable": (
        (
            "mlx5_core 0000:5c:00.0: Port module event[error]: module 1, Cable error, Bad or "
            "shorted "
            "cable/module"
        ),
        (
            "mlx5_core 0000:5c:00.0: mlx5_port_module_event:1131:(pid 0): Port module "
            "event[error]: "
            "module 0, Cable error, Bus stuck(I2C or data shorted)"
        ),
        (
            "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, No "
            "EEPROM/retry "
            "timeout"
        ),
    ),
    "nic_transmit_timeout": (
        "NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 3 timed out",
        (
            "mlx5_core 0000:5c:00.0 ens1f0np0: NETDEV WATCHDOG: CPU: 4: transmit queue 7 timed out "
            "5120 ms"
        ),
        "mlx5_core 0000:5c:00.0 ens1f0np0: TX timeout detected",
        (
            "mlx5_core 0000:17:00.0 ens1f0np0: TX timeout on queue: 4, SQ: 0x1a6b, CQ: 0xd3, "
            "SQ Cons: 0x0 SQ Prod: 0x3"
        ),
        "i40e 0000:3d:00.0 eno1: tx_timeout: VSI_seid: 390, Q 5, NTC: 0x1f, HWB: 0x1f",
        "ixgbe 0000:81:00.0 eth0: Detected Tx Unit Hang",
        "e1000e 0000:00:1f.6 eno1: Detected Hardware Unit Hang:",
        "tg3 0000:02:00.0 eth0: transmit timed out, resetting",
        (
            "ena 0000:00:05.0 eth0: TX hasn't completed, qid 4, index 100. 5000 msecs since "
            "last interrupt"
        ),
        "ena 0000:00:05.0 eth0: Keep alive watchdog timeout.",
        "virtio_net virtio0 eth0: NETDEV WATCHDOG: CPU: 0: transmit queue 1 timed out 5100 ms",
    ),
    "nic_firmware": (
        "ixgbe 0000:3b:00.0: Adapter removed",
        "igb 0000:04:00.0 eno1: PCIe link lost, device now detached",
        "bnxt_en 0000:c1:00.0 enp193s0f0np0: Firmware not responding, status: 0x8000",
        "bnxt_en 0000:19:00.0 eth0: Firmware is not responding",
        "ice 0000:b1:00.0: Firmware recovery mode detected. Limiting functionality.",
        "igb 0000:05:00.0 enp5s0: PCIe link lost",
        (
            "ixgbe 0000:81:00.0: Network adapter has been stopped because it has over "
            "heated. Restart the computer."
        ),
    ),
    "neighbour_table_full": (
        "neighbour: arp_cache: neighbor table overflow!",
        "neighbour: ndisc_cache: neighbor table overflow!",
    ),
    "conntrack_full": (
        "nf_conntrack: nf_conntrack: table full, dropping packet",
        "nf_conntrack: table full, dropping packet",
    ),
    "nvlink_detect_failed": (
        "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
    ),
    "peermem_invalid": (
        (
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping "
            "further processing"
        ),
        (
            "nvidia_peermem: nv_get_p2p_free_callback:132 ERROR detected invalid context, "
            "skipping further processing"
        ),
    ),
    "gpu_library_segfault": (
        (
            "pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp "
            "00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]"
        ),
        (
            "python3[77]: segfault at 8 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 6 in "
            "libcuda.so.570.86.15[7f7c7ac00000+d3d3000] likely on CPU 12 (core 3, socket 1)"
        ),
        (
            "traps: ray::Worker[9] general protection fault ip:7f7c sp:7f7b error:0 in "
            "libcublasLt.so.12[7f7c7ac00000+d3d3000]"
        ),
    ),
    "amdgpu_uncorrected": (
        "amdgpu 0000:83:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block",
        (
            "amdgpu 0000:83:00.0: amdgpu: socket: 0, die: 0, 2 new uncorrectable hardware errors "
            "detected in umc block"
        ),
    ),
    "amdgpu_reset": (
        "amdgpu 0000:83:00.0: amdgpu: GPU reset begin!",
        (
            "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled "
            "seq=1, emitted "
            "seq=3"
        ),
        "amdgpu 0000:c3:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
    ),
    "nvme_dead": (
        "nvme nvme0: Disabling device after reset failure: -19",
        "nvme nvme3: Removing after probe failure status: -19",
        "nvme nvme1: Device not ready; aborting reset, CSTS=0x1",
        "nvme nvme1: Device not ready; aborting initialisation",
        "nvme nvme2: resetting controller due to persistent internal error",
    ),
    "nvme_reset": (
        "nvme nvme0: Identify Controller failed (-4)",
        "nvme nvme0: IO queues lost",
        "nvme nvme0: I/O 22 QID 0 timeout, reset controller",
        "nvme nvme0: I/O 22 (I/O Cmd) QID 5 timeout, reset controller",
        "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller",
        "nvme nvme0: I/O 9 QID 1 timeout, disable controller",
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
        "nvme nvme0: frozen state error detected, reset controller",
        "nvme 0000:04:00.0: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x2010",
    ),
    "nvme_timeout": (
        "nvme nvme0: I/O 832 QID 7 timeout, aborting",
        "nvme nvme0: I/O 832 (I/O Cmd) QID 7 timeout, aborting",
        (
            "nvme nvme0: I/O tag 832 (1340) opcode 0x1 (I/O Cmd) QID 7 timeout, aborting "
            "req_op:WRITE(1) size:131072"
        ),
        "nvme nvme0: I/O 12 QID 4 timeout, completion polled",
        "nvme 0000:01:00.0: I/O 29 QID 4 timeout, aborting",
    ),
    "nvme_no_path": (
        "block nvme2n1: no available path - failing I/O",
        "nvme nvme2n1: no path available - failing I/O",
    ),
    "nvme_path_lost": (
        "nvme nvme4: starting error recovery",
        "block nvme0n1: no usable path - requeuing I/O",
        "nvme nvme0n1: no path available - requeuing I/O",
        "nvme nvme1: failed nvme_keep_alive_end_io error=10",
        "nvme nvme1: Failed reconnect attempt 5",
    ),
    "nvme_media_error": (
        "nvme0n1: I/O Cmd(0x2) @ LBA 2048, 8 blocks, I/O Error (sct 0x2 / sc 0x81) MORE DNR",
        (
            "nvme0n1: Read(0x2) @ LBA 81920, 256 blocks, Unrecovered Read Error (sct 0x2 / sc "
            "0x81) "
            "DNR"
        ),
    ),
    "nvme_read_only": (
        (
            "nvme0n1: Write(0x1) @ LBA 81920, 256 blocks, Namespace is Write Protected (sct 0x0 / "
            "sc "
            "0x20) DNR"
        ),
        "nvme0n1: I/O Cmd(0x1) @ LBA 1, 8 blocks, I/O Error (sct 0x1 / sc 0x82) DNR",
    ),
    "disk_medium_error": (
        "blk_update_request: critical medium error, dev sda, sector 123456 op 0x0:(READ) flags 0x0",
        "critical medium error, dev sdb, sector 5 op 0x0:(READ) flags 0x80700 phys_seg 1",
        "sd 0:0:0:0: [sda] tag#12 Sense Key : Medium Error [current] ",
    ),
    "disk_hardware_error": ("sd 0:0:0:0: [sda] Sense Key : Hardware Error [current] ",),
    "disk_offline": (
        "sd 0:0:0:0: rejecting I/O to offline device",
        "sd 0:0:0:0: [sda] Device offlined - not ready after error recovery",
        "scsi 0:0:0:0: Device offlined - not ready after error recovery",
    ),
    "disk_write_lost": (
        "Buffer I/O error on dev dm-0, logical block 1308098575, lost async page write",
        "Buffer I/O error on dev sda1, logical block 0, lost sync page write",
        "Buffer I/O error on device sdb1, logical block 9, lost page write due to I/O error",
        "lost page write due to I/O error on sdb1",
    ),
    "disk_io_error": (
        "critical medium error, dev nvme0n1, sector 5 op 0x0:(READ) flags 0x80700 phys_seg 1",
        "timeout error, dev sda, sector 5 op 0x0:(READ) flags 0x0",
        "blk_update_request: I/O error, dev nvme0n1, sector 2048 op 0x1:(WRITE) flags 0x8800",
        "I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
        "print_req_error: I/O error, dev vda, sector 2048",
        "end_request: I/O error, dev sda, sector 2048",
        "Buffer I/O error on dev sda1, logical block 123456, async page read",
        "blk_update_request: critical target error, dev nvme0n1, sector 5 op 0x0:(READ) flags 0x0",
        "Read-error on swap-device (8:0:123456)",
    ),
    "beyond_end_of_device": (
        (
            "kworker/u100:0: attempt to access beyond end of device\\x0anvme0n1: rw=2049, "
            "sector=9, "
            "nr_sectors = 8 limit=8"
        ),
        "attempt to access beyond end of device",
    ),
    "ata_error": (
        "ata3.00: failed command: READ FPDMA QUEUED",
        "ata1.00: exception Emask 0x0 SAct 0x7fffffff SErr 0x0 action 0x6 frozen",
        "ata1.00: disabled",
    ),
    "hba_fault": (
        "mpt3sas_cm0: SAS host is non-operational !!!!",
        "mpt3sas_cm0: fault_state(0x5862)!",
        "megaraid_sas 0000:18:00.0: FW in FAULT state Fault code:0x10000 subcode:0x0",
        "smartpqi 0000:5e:00.0: controller offline: reason code 0x6105",
        "megaraid_sas 0000:3b:00.0: 99 (1s/0x0002/FATAL) - VD 01/1 is now OFFLINE",
        "hpsa 0000:03:00.0: Controller lockup detected: 0x00130000",
        "mpt3sas_cm0: _base_fault_reset_work: hard reset: failed",
    ),
    "fs_read_only": (
        "EXT4-fs (sda1): Remounting filesystem read-only",
        "BTRFS info (device nvme0n1p3): forced readonly",
        "BTRFS info (device nvme0n1p3 state EA): forced readonly",
        "F2FS-fs (sda1): Remounting filesystem readonly",
    ),
    "fs_journal_aborted": (
        "Aborting journal on device sda1-8.",
        "Aborting journal on device dm-0-8.",
        "JBD2: Detected IO errors while flushing file data on nvme0n1p2-8",
        "JBD2: I/O error when updating journal superblock for sda1-8.",
        "EXT4-fs error (device sda1): ext4_journal_check_start:61: Detected aborted journal",
    ),
    "ext4_superblock": ("EXT4-fs (nvme0n1p1): I/O error while writing superblock",),
    "xfs_shutdown": (
        "XFS (sda1): xfs_do_force_shutdown(0x1) called from line 1 of file fs/xfs/xfs_buf.c.",
        "XFS (dm-2): xfs_do_force_shutdown(0x8) called from line 461 of file fs/xfs/xfs_log.c.",
        "XFS (nvme0n1p1): Filesystem has been shut down due to log error (0x2).",
        (
            "XFS (sda1): Corruption of in-memory data (0x8) detected at xfs_trans_cancel+0x10 "
            "(fs/xfs/xfs_trans.c:1). Shutting down filesystem."
        ),
        "XFS (sda1): I/O Error Detected. Shutting down filesystem",
        "XFS (sda1): log I/O error -5",
    ),
    "fs_error": (
        "EXT4-fs (sda1): Delayed block allocation failed for inode 12 at logical offset 0",
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory",
        "EXT4-fs (sda1): error count since last fsck: 2",
        "EXT4-fs (sda1): warning: mounting fs with errors, running e2fsck is recommended",
        "EXT4-fs warning (device sda1): ext4_end_bio:347: I/O error 10 writing to inode 12",
        'XFS (sda1): metadata I/O error in "xfs_imap_to_bp+0x5c" at daddr 0x40 len 32 error 5',
        "XFS (sda1): Metadata corruption detected at xfs_agf_read_verify+0x10, xfs_agf block 0x1",
        "BTRFS error (device sda1): bdev /dev/sda1 errs: wr 1, rd 0, flush 0, corrupt 0, gen 0",
        "BTRFS error (device sda1 state A): parent transid verify failed on 1 wanted 2 found 3",
        "BTRFS warning (device sda1): csum failed root 5 ino 257 off 0 csum 0x1 expected 0x2",
        "EXT4-fs (sda1): This should not happen!! Data will be lost",
        "JBD2: recovery failed",
        "BTRFS: error (device sda3) in btrfs_commit_transaction:2377: errno=-5 IO failure",
        "XFS (sda3): Failing async write on buffer block 0x1. Retrying async write.",
        "WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.",
    ),
    "raid_disk_failed": (
        "md/raid1:md0: Disk failure on sdb1, disabling device.",
        "md/raid:md5: Disk failure on sdb3, disabling device.",
        "md/raid10:md2: Disk failure on nvme2n1p1, disabling device.",
        "md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.",
    ),
    "raid_degraded": (
        "md: kicking non-fresh sdb1 from array!",
        "md/raid1:md127: active with 1 out of 2 mirrors",
        "md/raid:md5: raid level 5 active with 3 out of 4 devices, algorithm 2",
        "md/raid:md5: not enough operational devices (2/4 failed)",
        "md/raid1:md0: read error corrected (8 sectors at 2048 on sdb1)",
        "md/raid10:md1: active with 3 out of 4 devices",
        "md/raid:md5: Too many read errors on sdc1.",
        "md/raid:md5: Cannot continue operation (2/4 failed).",
        "md: super_written gets error=-5",
        "device-mapper: multipath: 253:3: Failing path 8:32.",
        "megaraid_sas 0000:3b:00.0: 1234 (680000000s/0x0002/CRIT) - VD 00/0 is now DEGRADED",
    ),
    "panic_hardware": (
        "Kernel panic - not syncing: Fatal Machine check",
        "Kernel panic - not syncing: Fatal local machine check",
        "Kernel panic - not syncing: Fatal hardware error!",
        "Kernel panic - not syncing: Uncorrected hardware memory error",
        "Kernel panic - not syncing: Timeout synchronizing machine check over CPUs",
        "Kernel panic - not syncing: UE memory read error on DIMM_A1 (page:0x1 offset:0x0)",
    ),
    "panic": (
        "Kernel panic - not syncing: hung_task: blocked tasks",
        "Kernel panic - not syncing: softlockup: hung tasks",
        "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)",
        "Kernel panic - not syncing: Out of memory: system-wide panic_on_oom is enabled",
    ),
    "oops": (
        "BUG: unable to handle kernel NULL pointer dereference at 0000000000000038",
        "BUG: kernel NULL pointer dereference, address: 0000000000000038",
        "BUG: unable to handle page fault for address: ffffc90000fff000",
        "Oops: 0000 [#1] SMP NOPTI",
        "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT",
        "general protection fault: 0000 [#1] SMP",
        "divide error: 0000 [#1] SMP",
        "kernel BUG at mm/slub.c:305!",
        "BUG: Bad page state in process python3  pfn:3f12a",
        "Unable to handle kernel paging request at virtual address ffff800012345678",
        "Internal error: Oops: 96000004 [#1] SMP",
        "invalid opcode: 0000 [#1] SMP NOPTI",
        "divide_error: 0000 [#1] PREEMPT SMP",
        "general protection fault for non-canonical address 0xe017577ddf75b7dd: 0000 [#1] SMP",
        "PANIC: double fault, error_code: 0x0",
        "BUG: scheduling while atomic: swapper/3/0/0x00000100",
        "BUG: workqueue lockup - pool cpus=5 node=0 flags=0x0 nice=0 stuck for 31s!",
        "list_del corruption. prev->next should be ffff, but was ffff",
    ),
    "hard_lockup": (
        "NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",
        "watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 4",
        "Watchdog detected hard LOCKUP on cpu 12",
    ),
    "soft_lockup": (
        "watchdog: BUG: soft lockup - CPU#4 stuck for 23s! [pt_autograd_0:2289563]",
        "NMI watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [kworker/0:1:77]",
        "BUG: soft lockup - CPU#0 stuck for 67s! [java:77]",
    ),
    "hung_task": (
        "INFO: task kworker/u256:3:77 blocked for more than 120 seconds.",
        "INFO: task python3:4711 blocked in I/O wait for more than 122 seconds.",
        "INFO: task tmux: server:4711 blocked for more than 120 seconds.",
    ),
    "rcu_stall": (
        "rcu: INFO: rcu_sched self-detected stall on CPU",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "INFO: rcu_sched detected stalls on CPUs/tasks: { 3} (detected by 1, t=60002 jiffies)",
        "rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 3-... } 21 jiffies",
        "rcu: rcu_sched kthread starved for 2500 jiffies! g1 f0x0 RCU_GP_WAIT_FQS(5)",
        "rcu: rcu_preempt kthread timer wakeup didn't happen for 5252 jiffies! g123 f0x0",
    ),
    "netdevice_stuck": (
        "unregister_netdevice: waiting for veth1a2b to become free. Usage count = 3",
        "unregister_netdevice: waiting for lo to become free. Usage count = 1",
    ),
    "file_max": ("VFS: file-max limit 1000000 reached",),
    "oom": (
        "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0",
        "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB",
        "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB",
        "Out of memory: Kill process 1532 (badsysprogram) score 1000 or sacrifice child",
        "Killed process 9966 (mysqld) total-vm:1kB, anon-rss:2kB, file-rss:0kB",
    ),
    "nfs_not_responding": (
        "nfs: server nfs-prod-01.example.com not responding, still trying",
        "nfs: server 10.0.0.7 not responding, timed out",
        "lockd: server 10.0.0.7 not responding, still trying",
        "NFS: state manager: check lease failed on NFSv4 server nas01 with error 13",
    ),
    "nfs_answers": ("nfs: server 10.0.0.7 OK",),
    "nfs_lock_lost": (
        "NFS: nfs4_reclaim_open_state: Lock reclaim failed!",
        "NFS: __nfs4_reclaim_open_state: Lock reclaim failed!",
        "NFS: nas01: lost 3 locks",
    ),
    "cifs_not_responding": (
        "CIFS: VFS: \\\\files.example.com has not responded in 180 seconds. Reconnecting...",
        "CIFS VFS: Server files has not responded in 120 seconds. Reconnecting...",
    ),
    "ceph_session_lost": (
        "libceph: mon0 (1)10.0.0.7:6789 session lost, hunting for new mon",
        "ceph: mds0 hung",
    ),
    "lustre_evicted": (
        (
            "LustreError: 167-0: scratch-OST0001-osc-ffff8881: This client was evicted by "
            "scratch-OST0001; in progress operations using this service will fail."
        ),
    ),
    "lustre_lost": (
        (
            "Lustre: scratch-MDT0000-mdc-ffff8881: Connection to scratch-MDT0000 (at "
            "10.0.0.7@o2ib) "
            "was lost; in progress operations using this service will wait for recovery to complete"
        ),
    ),
    "lustre_restored": (
        (
            "Lustre: scratch-MDT0000-mdc-ffff8881: Connection restored to scratch-MDT0000 (at "
            "10.0.0.7@o2ib)"
        ),
        "Lustre: work-OST0003-osc-ffff95: Connection restored to 10.1.1.4@o2ib (at 10.1.1.4@o2ib)",
    ),
    "mce_deferred": (
        "[Hardware Error]: Deferred error, no action required.",
        (
            "[Hardware Error]: CPU:3 (19:11:1) "
            "MC21_STATUS[-|-|MiscV|AddrV|-|-|SyndV|UECC|Deferred|-|Scrub]: 0x9c2031000000011b"
        ),
    ),
    "mce_logged": (
        "mce: [Hardware Error]: Machine check events logged",
        "[Hardware Error]: Corrected error, no action required.",
    ),
    "mce_storm": (
        "mce: CMCI storm detected: switching to poll mode",
        "mce: CPU12 BANK7 CMCI storm detected",
    ),
    "mlx5_pci_error": (
        (
            "mlx5_core 0000:81:00.0: mlx5_pci_err_detected Device state = 1 health sensors: "
            "1 pci_status: 1. Enter, pci channel state = 2"
        ),
    ),
    "driver_probe_failed": (
        "mlx5_core: probe of 0000:81:00.0 failed with error -110",
        "nvme 0000:04:00.0: probe with driver nvme failed with error -19",
        "mlx5_core 0000:81:00.0: probe_one:1511:(pid 8): mlx5_init_one failed with error code -12",
    ),
    "nvme_io_error": (
        "nvme0n1: Read(0x2) @ LBA 36700160, 8 blocks, Internal Error (sct 0x0 / sc 0x6) DNR",
        "nvme0n1: Read(0x2) @ LBA 0, 8 blocks, Host Aborted Command (sct 0x3 / sc 0x71)",
    ),
    "cpu_missing": (
        "smpboot: do_boot_cpu failed(-1) to wakeup CPU#3",
        "CPU3 failed to report alive state",
        "smp: Failed to bring up CPU 12 (-110)",
    ),
    "clock_unstable": (
        (
            "clocksource: timekeeping watchdog on CPU12: Marking clocksource 'tsc' as "
            "unstable because the skew is too large:"
        ),
    ),
    "interrupt_disabled": (
        "Disabling IRQ #16",
        'irq 16: nobody cared (try booting with the "irqpoll" option)',
    ),
    "lustre_error": (
        (
            "LustreError: 11-0: work-MDT0000-mdc-ffff: operation mds_reint to node "
            "10.1.1.1@o2ib failed: rc = -107"
        ),
        (
            "LNetError: 1234:0:(o2iblnd_cb.c:3311:kiblnd_check_txs_locked()) Timed out tx: "
            "active_txs, 1 seconds"
        ),
    ),
    "amdgpu_lost": ("amdgpu 0000:c3:00.0: amdgpu: GPU reset(2) failed",),
}

ORDINARY = (
    (
        "clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc-early' as "
        "unstable because the skew is too large:"
    ),
    "tsc: Marking TSC unstable due to clocksource watchdog",
    "blk_update_request: critical target error, dev nvme0n1, sector 5 op 0x3:(DISCARD) flags 0x0",
    "EDAC sbridge MC1: HANDLING MCE MEMORY ERROR",
    "EDAC sbridge MC1: TSC 0",
    "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4",
    "[Hardware Error]: event severity: info",
    "mce: CMCI storm subsided: switching to interrupt mode",
    "DMAR: DRHD: handling fault status reg 2",
    "pcieport 0000:b2:04.0: pciehp: Slot(17): Card present",
    (
        "pcieport 0000:b2:04.0: pciehp: Slot #17 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- "
        "HotPlug+ Surprise+ Interlock-"
    ),
    "amdgpu 0000:c3:00.0: amdgpu: GPU reset(1) succeeded!",
    (
        "nvme0n1: Dataset Management(0x9) @ LBA 0, 8 blocks, Invalid Field in Command (sct "
        "0x0 / sc 0x2) DNR"
    ),
    "md/raid10:md1: active with 4 out of 4 devices",
    "ata1.00: configured for UDMA/133",
    (
        "kworker/u8:1: attempt to access beyond end of device\\x0aloop0: rw=0, sector=8, "
        "nr_sectors = 8 limit=4"
    ),
    "tsc: Marking TSC unstable due to TSCs unsynchronized",
    "XFS (sda3): Starting recovery (logdev: internal)",
    "EXT4-fs (sda1): recovery complete",
    "LNet: Added LNI 10.0.0.7@o2ib [8/256/0/180]",
    "i2c i2c-0: probe of 0-0050 failed with error -110",
    "memory: usage 524288kB, limit 524288kB, failcnt 1234",
    "mce: CPU supports 22 MCE banks",
    "MCE: In-kernel MCE decoding enabled.",
    "mce: CPU0: Core temperature/speed normal",
    "mce: [Hardware Error]: TSC 0 ADDR 3f12a000 MISC 86",
    "HEST: Table parsing has been initialized.",
    "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.",
    "ERST: Error Record Serialization Table (ERST) support is initialized.",
    "BERT: Total records found: 0",
    "EDAC MC: UMC0 chip selects:",
    "EDAC MC: Ver: 3.0.0",
    "EDAC MC0: Giving out device to module amd64_edac controller F19h_M10h: DEV 0000:00:18.3",
    "EDAC PCI0: Giving out device to module amd64_edac controller EDAC PCI controller",
    "EDAC amd64: MC: 0:     0MB 1:     0MB",
    "RAS: Correctable Errors collector initialized.",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 120",
    "pcieport 0000:00:01.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+",
    "pcieport 0000:a0:01.0: pciehp: Slot(12): Link Up",
    "pcieport 0000:00:01.0: AER: device recovery successful",
    "vfio-pci 0000:b3:00.0: not ready 1023ms after FLR; waiting",
    "mlx5_core 0000:5c:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
    "mlx5_core 0000:5c:00.0: 31.504 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x16",
    "DMAR: DRHD base: 0x000000fbffc000 flags: 0x1",
    "DMAR: [Firmware Bug]: RMRR entry for device 02:00.0 is broken - applying workaround",
    "AMD-Vi: Interrupt remapping enabled",
    "mlx5_core 0000:5c:00.0: firmware version: 28.39.1002",
    "mlx5_core 0000:5c:00.0: E-Switch: Total vports 10, per vport: max uc(128) max mc(2048)",
    "mlx5_core 0000:5c:00.1: Port module event: module 1, Cable unplugged",
    "mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged",
    (
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:294:(pid 7): PCIe slot advertised sufficient "
        "power "
        "(75W)."
    ),
    "mlx5_core 0000:5c:00.0 ens1f0np0: Link down",
    "mlx5_core 0000:5c:00.0 ens1f0np0: Link up",
    "nvidia-peermem nv_get_p2p_free_callback:127",
    "nvidia-nvswitch3: open (major=510)",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build",
    "NVRM: Xid (PCI:0000:b3:00): 79, pid=7, name=python3, GPU has fallen off the bus.",
    "amdgpu 0000:83:00.0: amdgpu: 3 correctable hardware errors detected in umc block",
    "amdgpu 0000:83:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
    "operation not supported error, dev nvme0n1, sector 0 op 0x9:(WRITE_ZEROES) flags 0x800",
    "xfs_do_force_shutdown is a function",
    "XFS (sda1): xfs_do_force_shutdown(0x4) called from line 1 of file fs/xfs/xfs_fsops.c.",
    ("nvme0n1: Read(0x2) @ LBA 81920, 256 blocks, Access Denied (sct 0x2 / sc 0x86) DNR"),
    "nvme0n1: I/O Cmd(0x2) @ LBA 0, 8 blocks, I/O Error (sct 0x2 / sc 0x87) DNR",
    "nvme nvme0: pci function 0000:01:00.0",
    "nvme nvme0: Shutdown timeout set to 10 seconds",
    "nvme nvme0: missing or invalid SUBNQN field.",
    "nvme nvme0: 32/0/0 default/read/poll queues",
    "nvme nvme0: failed to set APST feature (2)",
    "nvme nvme0: Abort status: 0x0",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1",
    "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
    "I/O error, dev loop7, sector 2 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
    "Buffer I/O error on dev fd0, logical block 0, async page read",
    "Buffer I/O error on dev loop0, logical block 0, lost async page write",
    "sd 0:0:0:0: [sda] Sense Key : Illegal Request [current] ",
    "sd 0:0:0:0: [sda] Synchronizing SCSI cache",
    "ata5: SATA link down (SStatus 0 SControl 300)",
    "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "EXT4-fs (nvme0n1p2): re-mounted. Opts: errors=remount-ro",
    "EXT4-fs (dm-0): metadata_csum_seed is not necessary",
    "EXT4-fs (sda1): error count since last fsck: 0",
    "EXT4-fs (loop0): Remounting filesystem read-only",
    "EXT4-fs error (device loop3): ext4_lookup:1785: inode #2: comm ls: deleted inode referenced",
    "XFS (dm-2): Ending clean mount",
    "XFS (dm-2): User initiated shutdown received. Shutting down filesystem",
    "XFS (loop2): Filesystem has been shut down due to log error (0x2).",
    "BTRFS info (device sda1): bdev /dev/sda1 errs: wr 0, rd 0, flush 0, corrupt 4, gen 0",
    "BTRFS info (device sda1): using crc32c (crc32c-intel) checksum algorithm",
    "md/raid1:md127: active with 2 out of 2 mirrors",
    "md/raid:md5: raid level 5 active with 4 out of 4 devices, algorithm 2",
    "md: md127: resync done.",
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
    "Uhhuh. NMI received for unknown reason 3d on CPU 0.",
    "rcu: Hierarchical RCU implementation.",
    "rcu: \tRCU restricting CPUs from NR_CPUS=8192 to nr_cpu_ids=256.",
    "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate",
    "WARNING: CPU: 3 PID: 77 at kernel/workqueue.c:1 check_flush_dependency+0x1",
    "---[ end Kernel panic - not syncing: Fatal Machine check ]---",
    "python3[77]: segfault at 8 ip 00007f7c sp 00007f7c error 4 in libc.so.6[7f7c7ac00000+1000]",
    "a.out[77]: segfault at 0 ip 0000000000401136 sp 00007ffd error 6 in a.out[401000+1000]",
    "traps: python3[77] general protection fault ip:7f7c sp:7f7b error:0 in libtorch_cpu.so[7f+1]",
    "traps: a.out[77] trap invalid opcode ip:401136 sp:7ffd error:0 in a.out[401000+1000]",
    "oom_reaper: reaped process 4711 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "python3: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO)",
    "nfs: server 10.0.0.7 OK",
    "FS-Cache: Netfs 'nfs' registered for caching",
    "Lustre: Mounted scratch-client",
    "Lustre: scratch-MDT0000-mdc-ffff8881: Connection restored to scratch-MDT0000 (at 1@o2ib)",
    "libceph: mon0 (1)10.0.0.7:6789 session established",
    "TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.",
    "usb 1-2: device descriptor read/64, error -71",
    "ACPI Error: No handler for Region [POWR] (00000000a1b2) [IPMI] (20210730/evregion-130)",
    "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PCI0], AE_NOT_FOUND",
    "acpi PNP0A08:00: _OSC: platform does not support [SHPCHotplug AER LTR DPC]",
    'audit: type=1400 audit(1753325017.312:11): apparmor="STATUS" name="Out of memory: Kill"',
    "systemd[1]: Mounting Kernel Trace File System...",
    "EXT4-fs (nvme0n1p2): re-mounted; user said: Kernel panic - not syncing: Fatal Machine check",
)

COMMON = (
    "Linux version 6.8.0-{}-generic (buildd@lcy02) (x86_64-linux-gnu-gcc-13) #{}-Ubuntu SMP",
    "BIOS-e820: [mem 0x{:016x}-0x{:016x}] usable",
    "ACPI: SSDT 0x{:016X} {:06X} (v02 AMD    AmdTable 00000001 AMD  00000001)",
    "pci 0000:{:02x}:{:02x}.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint",
    "pci 0000:{:02x}:{:02x}.0: BAR 0 [mem 0xd0000000-0xd0ffffff 64bit pref]",
    "pci 0000:{:02x}:{:02x}.0: PME# supported from D0 D3hot",
    "pci 0000:{:02x}:{:02x}.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
    "pcieport 0000:{:02x}:{:02x}.0: PME: Signaling with IRQ 121",
    "smpboot: CPU {} APIC {} Converting physical 1 to logical die 1",
    "microcode: CPU{}: patch_level=0x0a0011{:02x}",
    "node {}: [mem 0x{:016x}-0x0000007fffffffff]",
    "usb {}-{}: New USB device found, idVendor=046b, idProduct=ff01, bcdDevice= 1.00",
    "usb {}-{}: new high-speed USB device number 3 using xhci_hcd",
    "hub {}-{}:1.0: 4 ports detected",
    "scsi host{}: ahci, port {}",
    "ata{}: SATA max UDMA/133 abar m2048@0x9c400000 port 0x9c400{:03x} irq 82",
    "nvme nvme{}: {}/0/0 default/read/poll queues",
    " nvme{}n1: p1 p2 p{}",
    "mlx5_core 0000:{:02x}:00.{}: Rate limit: 127 rates are supported, range: 0Mbps to 97656Mbps",
    "mlx5_core 0000:{:02x}:00.0 ens{}np0: renamed from eth0",
    "infiniband mlx5_{}: port {} state changed to ACTIVE",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{:x}{:x}: link becomes ready",
    "docker0: port {}(veth{:x}) entered forwarding state",
    "device veth{:x}{:x} entered promiscuous mode",
    "nvidia-nvswitch{}: using MSI{}",
    "NVRM: GPU at PCI:0000:{:02x}:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3{:02x}",
    "EXT4-fs (loop{}): mounted filesystem with{}out journal. Quota mode: none.",
    "loop{}: detected capacity change from 0 to {}",
    'audit: type=1400 audit(17533250{}.312:{}): apparmor="STATUS" operation="profile_load"',
    "python3[{}]: segfault at {:x} ip 00007f7c sp 00007f7c error 4 in libtorch.so[7f7c+1000]",
    "perf: interrupt took too long ({} > {}), lowering kernel.perf_event_max_sample_rate to 50000",
    "systemd-journald[{}]: Received client request to flush runtime journal {}.",
    "TCP: eth{}: Driver has suspect GRO implementation, TCP performance may be compromised {}.",
    "clocksource: tsc: mask: 0xffffffffffffffff max_cycles: 0x{:x}, max_idle_ns: {} ns",
    "workqueue: drm_fb_helper_damage_work hogged CPU{} for >10000us {} times, consider WQ_UNBOUND",
    "i40e 0000:{:02x}:00.{}: VSI seid 390 Tx ring 0 disable timeout is not set",
    "megaraid_sas 0000:{:02x}:00.0: FW now in Ready state {}",
    "IPMI message handler: version {}.{}",
    "hwmon hwmon{}: temp{}_input not available",
    "cgroup: fork rejected by pids controller in /slurm/uid_{}/job_{}",
)
"""What machines write while they boot and work; each has two numbers."""


def compose_ordinary_log(rng: random.Random, count: int) -> list[str]:
    """Compose a log of *count* lines, half of them of `ORDINARY` with other numbers."""
    composed: list[str] = []
    while len(composed) < count:
        composed.append(rng.choice(COMMON).format(rng.randrange(64), rng.randrange(64)))
        composed.append(re.sub(r"\b7\b", str(rng.randrange(10, 99)), rng.choice(ORDINARY)))
    return composed[:count]
