"""What kubelet has allocated on this host. Device: `host`. Which pod holds which GPU travels as `gpu.allocation`."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(2400, "kubelet.containers_count", Kind.GAUGE, Pace.TEN_SECONDS, "PodResourcesLister/List over pod-resources/kubelet.sock", "containers that hold a GPU, or a part of one", on_change=True),
    Signal(2401, "kubelet.gpus_count", Kind.GAUGE, Pace.TEN_SECONDS, "PodResourcesLister/List", "distinct GPUs and MIG devices that are held; holding is not using", on_change=True),
    Signal(2410, "gpu.allocation", Kind.EVENT, Pace.EVENT, "PodResourcesLister/List", "which container holds the GPU by kubelet's word; one event for each holding, told again as it ends"),
)
