"""What users of other tools ask for in public, and whether it is here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish, one public *thread* with it, and what there is of it *here*."""

    wish: str
    thread: str
    here: str


WISHES = (
    Wish("a GPU that is gone without an Xid", "NVIDIA/NVSentinel#155", "yes: `xid`, `inventory`"),
    Wish("flaps and symbol errors of InfiniBand and RoCE", "NVIDIA/NVSentinel#642", "yes: `nic`"),
    Wish(
        "no healthy node failed for what its NICs lack",
        "NVIDIA/NVSentinel#1663",
        "yes: `nic` compares a port with its own past",
    ),
    Wish(
        "a dead switch is one fault, not one for each port",
        "leptonai/gpud#931",
        "in a node: `nic`; over nodes: the circuit breaker stops, and does not name the switch",
    ),
    Wish("a rack is drained as a unit", "NVIDIA/NVSentinel#367", "no; the fleet page shows racks"),
    Wish(
        "one place that says whether a node is healthy",
        "NVIDIA/NVSentinel#275",
        "yes: `gate`, for nodes",
    ),
    Wish(
        "no alarm while a node is set up", "NVIDIA/NVSentinel#1423", "yes: an ERROR holds no node"
    ),
    Wish("a second, equal Xid is seen", "NVIDIA/DCGM#277", "yes: `xid` reads on from its mark"),
    Wish("Xids that NVML does not report", "NVIDIA/DCGM#235", "yes: `xid` reads the kernel log"),
    Wish(
        "how many GPUs there should be",
        "NVIDIA/dcgm-exporter#348",
        "yes: `inventory`; not as a metric",
    ),
    Wish("a diagnosis that never hangs", "NVIDIA/DCGM#247", "yes: every worker has a deadline"),
    Wish(
        "a prolog that does not wait for GPUs",
        "aws/aws-parallelcluster#6777",
        "yes: it loads nothing",
    ),
    Wish(
        "one job without the check",
        "GoogleCloudPlatform/cluster-toolkit#4238",
        "no: only the jobs of hpcverify itself",
    ),
    Wish(
        "a check that is only watched at first",
        "nebius/soperator#1963",
        "yes: `enforce` names checks",
    ),
    Wish("what others drained stays as it is", "nebius/soperator#1018", "yes: held by others"),
    Wish("suspects are verified where no job runs", "nebius/soperator#1371", "yes: a reservation"),
    Wish(
        "verified before it comes back",
        "nebius/soperator#1317",
        "yes: `repair`; it reboots nothing",
    ),
    Wish(
        "the slow or hanging rank is named",
        "NVIDIA/nccl#1324",
        "yes: `hpcverify collectives`, with gloo; rehearsed on no GPU",
    ),
    Wish(
        "the bad node of a job is found by halves",
        "vllm-project/vllm#7896",
        "yes: `hpcverify isolate`, by groups",
    ),
    Wish("7 of 8 GPUs is told as that", "NVIDIA/aicr#1858", "yes: `inventory`"),
    Wish("counters of single NVLinks", "marin-community/marin#9086", "yes: `nvlink`"),
    Wish(
        "nobody is blamed for a peer's error",
        "marin-community/marin#7869",
        "yes: witnesses are told apart",
    ),
    Wish(
        "states and reasons as metrics",
        "vpenso/prometheus-slurm-exporter#33",
        "no: `nodes --json`, and a program that is told of each change",
    ),
    Wish(
        "nodes on which jobs die at once",
        "DataBiosphere/toil#5400",
        "yes: the controller reads how jobs end (docs/slurm.md)",
    ),
    Wish(
        "conditions that clear again",
        "kubernetes/node-problem-detector#833",
        "yes: what was found counts once, or as long as it lasts",
    ),
    Wish(
        "no PASS where nothing was measured",
        "ROCm/rocm-systems#11468",
        "yes: a limit without a measurement is an ERROR",
    ),
    Wish("a self-check of GPU, CPU and memory", "pytorch/pytorch#52266", "yes: `run`"),
)
