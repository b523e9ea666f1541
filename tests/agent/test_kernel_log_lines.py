"""Every kind of line that becomes an event, as the kernel and its drivers write it; and lines that
do not.

Addresses, names and numbers are invented; the forms come from the kernel files named in the tables.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.hardware.kmsg import parse_record
from gangline.agent.kernel_log.gpu_rules import GpuFinder, XidDecoder
from gangline.agent.kernel_log.record import (
    ATTRIBUTES_MAX,
    NAME_CHARACTERS_MAX,
    VALUE_CHARACTERS_MAX,
    LinePart,
    ParsedLine,
)
from gangline.agent.kernel_log.rules import RULES, classify
from gangline.contract.signal import Kind
from gangline.contract.signals import BY_NAME

SHARED = Path(__file__).parents[3] / "shared/data/kernel_log"
ERROR = "[Hardware Error]:"

#: Line -> name, code, device, process id, process name, attributes.
LINES: dict[str, tuple[str, int, str, int, str, dict[str, str]]] = {
    # XID, of all generations
    "NVRM: Xid (PCI:0000:9B:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for "
    "RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).":
        ("gpu.xid", 119, "0000:9b:00.0", 2024380, "nvidia-smi", {}),
    "NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.":
        ("gpu.xid", 79, "0000:03:00.0", 0, "", {}),
    "NVRM: Xid (PCI:0000:03:00 GPU-I:05 GPU-CI:01): 13, pid=12, name=a b-c, Graphics Exception":
        ("gpu.xid", 13, "0000:03:00.0", 12, "a b-c", {"gpu_instance": "05", "compute_instance": "01"}),
    "NVRM: Xid (0000:03:00): 13, 0003 00000000 000090c0 00001b0c 00000000 00000000":
        ("gpu.xid", 13, "0000:03:00.0", 0, "", {}),
    "NVRM: Xid (0002:00): 8, Channel 00000020": ("gpu.xid", 8, "0000:02:00.0", 0, "", {}),
    "NVRM: Xid (PCI:0008:01:00): 94, Contained: CE User Channel (0x9). RST: No, D-RST: No":
        ("gpu.xid", 94, "0008:01:00.0", 0, "", {}),
    "NVRM: Xid (PCI:0000:9b:00): 987654, new": ("gpu.xid", 987654, "0000:9b:00.0", 0, "", {}),
    "NVRM: Xid (PCI:0000:9b:00): ": ("gpu.driver_message", 0, "0000:9b:00.0", 0, "", {}),
    # the driver without an XID
    "NVRM: GPU 0000:0A:00.0: GPU has fallen off the bus.": ("gpu.lost", 0, "0000:0a:00.0", 0, "", {}),
    "NVRM: The NVIDIA GPU 0000:0a:00.0 (PCI ID: 10de:2330)\nNVRM: installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands.":
        ("gpu.lost", 0, "0000:0a:00.0", 0, "", {}),
    "NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x62:0xffff:2477)":
        ("gpu.driver_message", 2, "0000:0a:00.0", 0, "", {}),
    "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  "
    "The GPU likely needs to be reset.": ("gpu.needs_reset", 0, "0000:9b:00.0", 0, "", {}),
    # its content decides: lost (0x0F), reset required (0x62), reboot required; public reports of
    # open-gpu-kernel-modules
    "NVRM: rpcRmApiAlloc_GSP: GspRmAlloc failed: hClient=0xc1d1a616; hParent=0x5c000054; hObject=0x5c00005b; "
    "hClass=0x0000c86f; paramsSize=0x00000170; paramsStatus=0x00000062; status=0x00000062":
        ("gpu.needs_reset", 0, "host", 0, "", {}),
    "NVRM rpcRmApiAlloc_GSP: GspRmAlloc failed: hClient=0xc1d00000; paramsStatus=0x00000062; status=0x00000062":
        ("gpu.needs_reset", 0, "host", 0, "", {}),
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned "
    "from status @ kernel_channel.c:2874": ("gpu.needs_reset", 0, "host", 0, "", {}),
    "nvidia-modeset: ERROR: GPU:0: Failed to initialize display engine: 0x62 (Reset required [NV_ERR_RESET_REQUIRED])":
        ("gpu.needs_reset", 0, "host", 0, "", {"gpu_number": "0"}),
    "NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP":
        ("gpu.needs_reset", 0, "host", 0, "", {"gpu_number": "6"}),
    "NVRM: GPU6 _kgspBootGspRm: (the GPU is likely in a bad state and may need to be reset)":
        ("gpu.needs_reset", 0, "host", 0, "", {"gpu_number": "6"}),
    "NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0x62:1901)":
        ("gpu.needs_reset", 0, "0000:41:00.0", 0, "", {}),
    "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.":
        ("gpu.needs_reboot", 0, "host", 0, "", {}),
    "nvidia-uvm: uvm_global.c:430 uvm_global_set_fatal_error_impl[pid:2311] Encountered a global fatal error: "
    "Generic RC error [NV_ERR_RC_ERROR]": ("gpu.needs_reboot", 0, "host", 0, "", {}),
    "NVRM: kgmmuInvalidateTlb_GM107: TLB invalidation failed, status = 0x0000000f":
        ("gpu.lost", 0, "host", 0, "", {}),
    "NVRM: GPU3 _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 76 sequence 1091!":
        ("gpu.lost", 0, "host", 0, "", {"gpu_number": "3"}),
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) "
    "returned from rmStatus @ kernel_ce_gv100.c:106": ("gpu.lost", 0, "host", 0, "", {}),
    "NVRM: GPU 0000:a1:00.0: RmInitAdapter failed! (0x62:0xf:2131)":
        ("gpu.lost", 0, "0000:a1:00.0", 0, "", {}),
    "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out for GPU0 (diff 8000 ms > timeout 5200 ms)":
        ("gpu.driver_message", 1, "host", 0, "", {"gpu_number": "0"}),
    "NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 322227881 heartbeat 0 diff 4129040 "
    "timeout 5200": ("gpu.driver_message", 1, "host", 0, "", {"gpu_number": "0"}),
    "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7":
        ("gpu.driver_message", 1, "host", 0, "", {}),
    "NVRM: kflcnWaitForHaltRiscv_GA102: Timeout waiting for RISC-V to halt":
        ("gpu.driver_message", 1, "host", 0, "", {}),
    "NVRM: GPU6 RmInitAdapter: Cannot initialize GSP firmware RM":
        ("gpu.driver_message", 2, "host", 0, "", {"gpu_number": "6"}),
    "NVRM: GPU 0000:a1:00.0: rm_init_adapter failed, device minor number 7":
        ("gpu.driver_message", 2, "0000:a1:00.0", 0, "", {}),
    "NVRM: GPU2 rpcRmApiControl_GSP: GspRmControl failed: hClient=0xc1d00001; paramsStatus=0x00000057; "
    "status=0x00000057": ("gpu.driver_message", 0, "host", 0, "", {"gpu_number": "2"}),
    "NVRM: API mismatch: the client has the version 550.54.14, but\nNVRM: this kernel module has the "
    "version 535.161.08.": ("gpu.driver_message", 0, "host", 0, "", {}),
    "nvidia: probe of 0000:02:00.0 failed with error -1":
        ("gpu.driver_message", 2, "0000:02:00.0", 0, "", {}),
    # amdgpu, of several kernels; public reports of ROCm and of the kernel's lists
    "amdgpu 0000:c5:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE":
        ("gpu.hang", 2, "0000:c5:00.0", 0, "", {}),
    "amdgpu 0000:c5:00.0: amdgpu: MES(1) failed to respond to msg=SUSPEND":
        ("gpu.hang", 2, "0000:c5:00.0", 0, "", {}),
    "[drm:mes_v11_0_submit_pkt_and_poll_completion.constprop.0 [amdgpu]] *ERROR* MES failed to response msg=3":
        ("gpu.hang", 2, "host", 0, "", {}),
    "amdgpu 0000:c4:00.0: amdgpu: remove_queue_mes failed to remove hardware queue from MES, doorbell=0x1002, queue: 1":
        ("gpu.hang", 2, "0000:c4:00.0", 0, "", {}),
    "amdgpu 0000:c5:00.0: amdgpu: failed to suspend gangs from MES":
        ("gpu.hang", 2, "0000:c5:00.0", 0, "", {}),
    "amdgpu 0000:c5:00.0: amdgpu: MES might be in unrecoverable state, issue a GPU reset":
        ("gpu.hang", 2, "0000:c5:00.0", 0, "", {}),
    "amdgpu 0000:c5:00.0: amdgpu: Failed to evict queue 1": ("gpu.hang", 2, "0000:c5:00.0", 0, "", {}),
    "amdgpu: Failed to evict process queues": ("gpu.hang", 2, "host", 0, "", {}),
    "amdgpu: Failed to suspend process pid 14368": ("gpu.hang", 2, "host", 0, "", {}),
    "amdgpu: amdgpu_amdkfd_restore_userptr_worker: Failed to resume KFD":
        ("gpu.hang", 2, "host", 0, "", {}),
    "amdgpu 0000:03:00.0: amdgpu: HIQ MQD's queue_doorbell_id0 is not 0, Queue preemption time out":
        ("gpu.hang", 2, "0000:03:00.0", 0, "", {}),
    "amdgpu 0000:01:00.0: qcm fence wait loop timeout expired": ("gpu.hang", 2, "0000:01:00.0", 0, "", {}),
    "amdgpu: qcm fence wait loop timeout expired": ("gpu.hang", 2, "host", 0, "", {}),
    "qcm fence wait loop timeout expired": ("gpu.hang", 2, "host", 0, "", {}),
    "kfd: the cp might be in an unrecoverable state due to an unsuccessful queues preemption":
        ("gpu.hang", 2, "host", 0, "", {}),
    "amdgpu 0000:01:00.0: timeout waiting for kiq fence": ("gpu.hang", 2, "0000:01:00.0", 0, "", {}),
    "[drm:amdgpu_gfx_enable_kcq [amdgpu]] *ERROR* KCQ enable failed": ("gpu.hang", 2, "host", 0, "", {}),
    "amdgpu 0000:0d:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000012 "
    "SMN_C2PMSG_82:0x00000005": ("gpu.hang", 2, "0000:0d:00.0", 0, "", {}),
    "amdgpu 0000:63:00.0: amdgpu: SMU: I'm not done with your command: SMN_C2PMSG_66:0x0000000E":
        ("gpu.hang", 2, "0000:63:00.0", 0, "", {}),
    "amdgpu 0000:0d:00.0: amdgpu: Failed to export SMU metrics table!":
        ("gpu.hang", 2, "0000:0d:00.0", 0, "", {}),
    "amdgpu 0000:09:00.0: amdgpu: Msg issuing pre-check failed(0xffffffc2) and SMU may be not in the right state!":
        ("gpu.hang", 2, "0000:09:00.0", 0, "", {}),
    "amdgpu 0000:c5:00.0: amdgpu: Ring gfx_0.0.0 reset failed":
        ("gpu.hang", 2, "0000:c5:00.0", 0, "", {"ring": "gfx_0.0.0"}),
    "amdgpu 0000:c1:00.0: [drm:amdgpu_ib_ring_tests [amdgpu]] *ERROR* IB test failed on vpe (-110).":
        ("gpu.hang", 2, "0000:c1:00.0", 0, "", {"engine": "vpe"}),
    "amdgpu 0000:c1:00.0: amdgpu: ib ring test failed (-110).": ("gpu.hang", 2, "0000:c1:00.0", 0, "", {}),
    "[drm:amdgpu_ring_test_helper [amdgpu]] *ERROR* ring kiq_0.2.1.0 test failed (-110)":
        ("gpu.hang", 2, "host", 0, "", {"tested_ring": "kiq_0.2.1.0"}),
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=16060, emitted seq=16062":
        ("gpu.hang", 0, "host", 0, "", {"ring": "sdma0"}),
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* GPU Recovery Failed: -62":
        ("gpu.reset", 1, "host", 0, "", {"recovery_error": "-62"}),
    "amdgpu 0000:09:00.0: [drm] device wedged, needs recovery": ("gpu.reset", 1, "0000:09:00.0", 0, "", {}),
    "amdgpu 0000:03:00.0: amdgpu: Fatal error during GPU init":
        ("gpu.driver_message", 2, "0000:03:00.0", 0, "", {}),
    "amdgpu: probe of 0000:03:00.0 failed with error -22": ("gpu.driver_message", 2, "0000:03:00.0", 0, "", {}),
    "amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block":
        ("gpu.ras_error", 1, "0000:c3:00.0", 0, "", {"block": "umc", "errors": "2"}),
    "amdgpu 0000:de:0d.0: amdgpu: {17}socket: 4, die: 0, 3 new correctable hardware errors detected in gfx block":
        ("gpu.ras_error", 0, "0000:de:0d.0", 0, "", {"block": "gfx", "socket": "4", "die": "0"}),
    "amdgpu 0000:c3:00.0: amdgpu: socket: 0, die: 1, 1 new deferred hardware errors detected in umc block":
        ("gpu.ras_error", 2, "0000:c3:00.0", 0, "", {"kind": "deferred"}),
    "amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!":
        ("gpu.ras_error", 1, "0000:68:00.0", 0, "", {"source": "ERREVENT_ATHUB_INTERRUPT"}),
    "amdgpu 0000:c2:00.0: amdgpu: RAS records:2100 exceed threshold:2048":
        ("gpu.ras_error", 3, "0000:c2:00.0", 0, "", {"records": "2100"}),
    "amdgpu 0000:c2:00.0: amdgpu: Saved bad pages 257 reaches threshold value 256":
        ("gpu.ras_error", 3, "0000:c2:00.0", 0, "", {"pages": "257"}),
    "amdgpu 0000:c2:00.0: ring comp_1.0.1 timeout, signaled seq=166926, emitted seq=166928":
        ("gpu.hang", 0, "0000:c2:00.0", 0, "", {"ring": "comp_1.0.1"}),
    "amdgpu 0000:c2:00.0: amdgpu: ring sdma0 timeout, but soft recovered":
        ("gpu.hang", 1, "0000:c2:00.0", 0, "", {"ring": "sdma0"}),
    "amdgpu 0000:c2:00.0: amdgpu: HWS hang": ("gpu.hang", 2, "0000:c2:00.0", 0, "", {}),
    "amdgpu 0000:e3:00.0: amdgpu: GPU reset begin!": ("gpu.reset", 0, "0000:e3:00.0", 0, "", {}),
    "amdgpu 0000:e3:00.0: amdgpu: GPU reset(9) failed": ("gpu.reset", 1, "0000:e3:00.0", 0, "", {}),
    "amdgpu 0000:e3:00.0: amdgpu: GPU reset end with ret = -62":
        ("gpu.reset", 1, "0000:e3:00.0", 0, "", {"error": "-62"}),
    "amdgpu 0000:e3:00.0: amdgpu: device lost from bus!": ("gpu.lost", 0, "0000:e3:00.0", 0, "", {}),
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12020, Fatal, Link 46 egress sequence ID error (First)":
        ("nvswitch.sxid", 12020, "0000:c1:00.0", 0, "", {"link": "46", "switch": "nvidia-nvswitch3"}),
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Non-fatal, LTSSM Fault Up":
        ("nvswitch.sxid", 20034, "0000:05:00.0", 0, "", {}),
    # PCIe
    "pcieport 0000:80:01.1: AER: Corrected error message received from 0000:81:00.0":
        ("pcie.aer", 0, "0000:81:00.0", 0, "", {"port": "0000:80:01.1"}),
    "pcieport 0000:80:01.1: AER: Multiple Uncorrectable (Non-Fatal) error received: 0000:81:00.0":
        ("pcie.aer", 1, "0000:81:00.0", 0, "", {}),
    "pcieport 0000:80:01.1: AER: Uncorrectable (Fatal) error message received from 0000:81:00.0":
        ("pcie.aer", 2, "0000:81:00.0", 0, "", {}),
    "nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)":
        ("pcie.aer", 0, "0000:81:00.0", 0, "", {"layer": "Physical Layer", "agent": "Receiver ID"}),
    "nvidia 0000:81:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible, "
    "(Unregistered Agent ID)": ("pcie.aer", 2, "0000:81:00.0", 0, "", {"layer": "Inaccessible"}),
    "mlx5_core 0000:98:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction "
    "Layer, id=9800(Requester ID)": ("pcie.aer", 1, "0000:98:00.0", 0, "", {"agent": "Requester ID"}),
    "pcieport 0000:80:01.1: DPC: containment event, status:0x1f01 source:0x0000":
        ("pcie.aer", 2, "0000:80:01.1", 0, "", {"dpc_status": "0x1f01"}),
    "pcieport 0000:80:01.1: pciehp: Slot(3): Link Down":
        ("pcie.aer", 2, "0000:80:01.1", 0, "", {"slot": "3", "severity": "Link Down"}),
    "pciehp 0000:80:01.1:pcie004: Slot(3-1): Card not present":
        ("pcie.aer", 2, "0000:80:01.1", 0, "", {"slot": "3-1"}),
    "nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)":
        ("pcie.aer", 2, "0000:01:00.0", 0, "", {"cannot_recover": "(no error_detected callback)"}),
    "pcieport 0000:00:02.0: AER: device recovery failed":
        ("pcie.aer", 2, "0000:00:02.0", 0, "", {"recovery": "failed"}),
    # firmware, machine checks, memory
    f"{{12}}{ERROR} event severity: fatal": ("host.hardware_error", 1, "host", 0, "", {"record": "12"}),
    f"{{1}}{ERROR} event severity: corrected": ("host.hardware_error", 2, "host", 0, "", {}),
    f"{{1}}{ERROR} event severity: recoverable": ("host.hardware_error", 0, "host", 0, "", {}),
    f"{{1}}{ERROR} event severity: info": ("host.hardware_error", 3, "host", 0, "", {}),
    f"{ERROR} event severity: fatal":
        ("host.hardware_error", 1, "host", 0, "", {"previous_boot": "yes"}),
    f"mce: {ERROR} Machine check events logged": ("host.machine_check", 0, "host", 0, "", {}),
    f"mce: {ERROR} CPU 17: Machine Check: 0 Bank 7: 8c00004000010091":
        ("host.machine_check", 0, "host", 0, "", {"cpu": "17", "bank": "7"}),
    f"mce: {ERROR} CPU 2: Machine Check Exception: 5 Bank 5: bea0000000000108":
        ("host.machine_check", 1, "host", 0, "", {"mcg_status": "5"}),
    f"{ERROR} CPU:0 (19:1:1) MC18_STATUS[Over|CE|MiscV|AddrV|-|-|SyndV|CECC|-|-|-]: 0xdc2040000000011b":
        ("host.machine_check", 0, "host", 0, "", {"bank": "18"}),
    f"mce: {ERROR} Machine check: Processor context corrupt":
        ("host.machine_check", 1, "host", 0, "", {"reason": "Processor context corrupt"}),
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1b41 "
    "offset:0x0 grain:32 syndrome:0x0 -  err_code:0x0080:0x0090 SystemAddress:0x1b41000)":
        ("host.memory_error", 0, "CPU_SrcID#0_MC#0_Chan#1_DIMM#0", 0, "", {"controller": "MC0"}),
    "EDAC MC2: 3 UE multi-bit ECC on DIMM_A1 or DIMM_A2 (csrow:2 channel:0 page:0x0 offset:0x0 grain:1)":
        ("host.memory_error", 1, "DIMM_A1 or DIMM_A2", 0, "", {}),
    f"{ERROR} CPU:0 (19:1:1) MC18_STATUS[-|-|MiscV|AddrV|-|-|SyndV|UECC|Deferred|-|-]: "
    "0x9c2031000000011b": ("host.machine_check", 1, "host", 0, "", {"bank": "18"}),
    "EDAC MC0: 1 UE Multi-bit ECC on P0_M0_DIMM0 (node:0 card:0 module:0 page:0x1 offset:0x0)":
        ("host.memory_error", 1, "P0_M0_DIMM0", 0, "", {}),
    "Memory failure: 0x19e1a3c: Sending SIGBUS to python3:4711 due to hardware memory corruption":
        ("host.memory_error", 1, "host", 4711, "python3", {"page": "19e1a3c"}),
    "Memory failure: 0x19e1a3c: recovery action for dirty LRU page: Recovered":
        ("host.memory_error", 1, "host", 0, "", {"recovery": "dirty LRU page: Recovered"}),
    # network
    "mlx5_core 0000:98:00.0: poll_health:812:(pid 0): device's health compromised - reached miss count":
        ("rdma.adapter_failed", 0, "0000:98:00.0", 0, "", {}),
    "mlx5_core 0000:98:00.0: print_health_info:433:(pid 0): Health issue observed, firmware internal "
    "error, severity(3) ERROR:": ("rdma.driver_error", 0, "0000:98:00.0", 0, "", {}),
    "mlx5_core 0000:98:00.1: Port module event[error]: module 1, Cable error, Power budget exceeded":
        ("rdma.driver_error", 0, "0000:98:00.1", 0, "", {}),
    "mlx5_core 0000:98:00.0: Port module event: module 0, Cable unplugged":
        ("rdma.driver_error", 0, "0000:98:00.0", 0, "", {}),
    "mlx5_core 0000:98:00.0: wait_func:1137:(pid 967): ACCESS_REG(0x805) timeout. Will cause a leak of "
    "a command resource": ("rdma.adapter_failed", 0, "0000:98:00.0", 0, "", {}),
    "mlx5_core 0000:98:00.0: probe_one:1820:(pid 12): mlx5_init_one failed with error code -110":
        ("rdma.adapter_failed", 0, "0000:98:00.0", 0, "", {}),
    "mlx5_core 0000:98:00.0: mlx5_function_enable:1157:(pid 12): Firmware over 120000 MS in "
    "pre-initializing state, aborting": ("rdma.adapter_failed", 0, "0000:98:00.0", 0, "", {}),
    "mlx5_core: probe of 0000:98:00.0 failed with error -110":
        ("rdma.adapter_failed", 0, "0000:98:00.0", 0, "", {}),
    "mlx5_core 0000:98:00.0: probe with driver mlx5_core failed with error -110":
        ("rdma.adapter_failed", 0, "0000:98:00.0", 0, "", {}),
    "mlx5_core 0000:98:00.0 ens1f0np0: TX timeout detected":
        ("rdma.driver_error", 0, "0000:98:00.0", 0, "", {"interface": "ens1f0np0"}),
    "mlx5_core 0000:98:00.0 ens1f0np0: RX timeout on channel: 5, ICOSQ: 0x1a2b RQ: 0x1a2c, CQ: 0x4d":
        ("rdma.driver_error", 0, "0000:98:00.0", 0, "", {"interface": "ens1f0np0"}),
    "mlx5_core 0000:98:00.0 ens1f0np0: TX timeout on queue: 3, SQ: 0x12, CQ: 0x13, SQ Cons: 0x1 SQ Prod: 0x9":
        ("rdma.driver_error", 0, "0000:98:00.0", 0, "", {}),
    "NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 3 timed out":
        ("rdma.driver_error", 0, "ens1f0np0", 0, "", {"queue": "3"}),
    "NETDEV WATCHDOG: ens1f0np0 (mlx5_core): transmit queue 3 timed out 5000 ms":
        ("rdma.driver_error", 0, "ens1f0np0", 0, "", {"timeout_milliseconds": "5000"}),
    "mlx5_core 0000:98:00.0 ens1f0np0: NETDEV WATCHDOG: CPU: 94: transmit queue 3 timed out 5032 ms":
        ("rdma.driver_error", 0, "0000:98:00.0", 0, "", {"interface": "ens1f0np0", "queue": "3"}),
    "mlx5_core 0000:5e:00.0: mlx5_pcie_event:301:(pid 21): Detected insufficient power on the PCIe slot (26W).":
        ("rdma.driver_error", 1, "0000:5e:00.0", 0, "", {"slot_power": "26W"}),
    "mlx5_core 0000:98:00.0: mlx5_health_try_recover:341:(pid 88): health recovery failed":
        ("rdma.adapter_failed", 0, "0000:98:00.0", 0, "", {}),
    "mlx5_core 0000:98:00.0: health recovery succeeded":
        ("rdma.adapter_failed", 0, "0000:98:00.0", 0, "", {"state": "back"}),
    "mlx5_core 0000:98:00.0: firmware version: 28.39.1002":
        ("rdma.adapter_failed", 0, "0000:98:00.0", 0, "", {"state": "back"}),
    # AWS
    "efa 0000:10:1b.0 rdmap16s27: The device didn't send any completion for admin cmd CREATE_AH(5) status 0 "
    "(ctx 0x00000000a1b2c3d4, sq producer: 77, sq consumer: 76, cq consumer: 76)":
        ("rdma.adapter_failed", 0, "0000:10:1b.0", 0, "", {"rdma_device": "rdmap16s27"}),
    "efa 0000:10:1b.0 rdmap16s27: The device sent a completion but the driver didn't receive any MSI-X "
    "interrupt for admin cmd REG_MR(7) status 1 (ctx: 0x00000000a1b2c3d4, sq producer: 7, sq consumer: 6, "
    "cq consumer: 6)": ("rdma.adapter_failed", 0, "0000:10:1b.0", 0, "", {}),
    "efa 0000:10:1b.0 rdmap16s27: Wait for completion (polling) timeout":
        ("rdma.adapter_failed", 0, "0000:10:1b.0", 0, "", {}),
    "efa 0000:10:1b.0 rdmap16s27: Admin queue is closed":
        ("rdma.adapter_failed", 0, "0000:10:1b.0", 0, "", {}),
    "efa 0000:10:1b.0 (NULL device *): Device isn't ready, abort com init 0x0":
        ("rdma.adapter_failed", 0, "0000:10:1b.0", 0, "", {}),
    "efa 0000:10:1b.0 rdmap16s27: Reset indication didn't turn off":
        ("rdma.adapter_failed", 0, "0000:10:1b.0", 0, "", {}),
    "mlx5_core 0000:98:00.0 ens1f0np0: Link down":
        ("net.link_message", 0, "ens1f0np0", 0, "", {"pci_address": "0000:98:00.0"}),
    "mlx5_core 0000:98:00.0 ens1f0np0: Link up": ("net.link_message", 1, "ens1f0np0", 0, "", {}),
    "igb 0000:04:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex, Flow Control: RX":
        ("net.link_message", 1, "eno1", 0, "", {}),
    "bnxt_en 0000:01:00.0 eno1np0: NIC Link is Down": ("net.link_message", 0, "eno1np0", 0, "", {}),
    "e1000e: eth0 NIC Link is Down": ("net.link_message", 0, "eth0", 0, "", {}),
    "bond0: (slave ens1f0): link status definitely down, disabling slave":
        ("net.link_message", 0, "ens1f0", 0, "", {"bond": "bond0"}),
    "bonding: bond0: link status definitely up for interface eth1, 25000 Mbps full duplex":
        ("net.link_message", 1, "eth1", 0, "", {}),
    # adapters of other makers: bnxt_en with bnxt_re, ionic, ice with irdma, mana, hns3; EFA as its
    # own driver prints it
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: Error (timeout: 5000000) msg {0xb4 0x1f3d} len:0":
        ("rdma.adapter_failed", 0, "0000:c2:00.0", 0, "", {"interface": "enp194s0f0np0"}),
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: Firmware fatal reset event received":
        ("rdma.adapter_failed", 0, "0000:c2:00.0", 0, "", {}),
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: Detected firmware fatal condition, initiating reset":
        ("rdma.adapter_failed", 0, "0000:c2:00.0", 0, "", {}),
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: Fatal firmware reset event, data1: 0x2, data2: 0x0, min wait 2000 ms":
        ("rdma.adapter_failed", 0, "0000:c2:00.0", 0, "", {}),
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: Firmware reset aborted":
        ("rdma.adapter_failed", 0, "0000:c2:00.0", 0, "", {}),
    "bnxt_en 0000:c2:00.0: QPLIB: cmdq[0x3a]=0x1 timedout (100000)msec":
        ("rdma.adapter_failed", 0, "0000:c2:00.0", 0, "", {}),
    "infiniband bnxt_re0: QPLIB: cmdq[0x3a]=0x1 timedout (100000)msec":
        ("rdma.adapter_failed", 0, "bnxt_re0", 0, "", {}),
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: Firmware reset completed":
        ("rdma.adapter_failed", 0, "0000:c2:00.0", 0, "", {"state": "back"}),
    "infiniband bnxt_re0: Couldn't destroy QP":
        ("rdma.driver_error", 0, "bnxt_re0", 0, "", {}),
    "infiniband bnxt_re0: Failed to modify HW QP":
        ("rdma.driver_error", 0, "bnxt_re0", 0, "", {}),
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: TX timeout detected, starting reset task!":
        ("rdma.driver_error", 0, "0000:c2:00.0", 0, "", {}),
    "ionic 0000:e5:00.0: FW heartbeat stalled at 4711":
        ("rdma.adapter_failed", 0, "0000:e5:00.0", 0, "", {}),
    "ionic 0000:e5:00.0: FW stopped 0x00":
        ("rdma.adapter_failed", 0, "0000:e5:00.0", 0, "", {}),
    "ionic 0000:e5:00.0 enp229s0: FW Down: Stopping LIFs":
        ("rdma.adapter_failed", 0, "0000:e5:00.0", 0, "", {}),
    "ionic 0000:e5:00.0: DEVCMD IDENTIFY(1) timeout after 10 secs":
        ("rdma.adapter_failed", 0, "0000:e5:00.0", 0, "", {}),
    "ionic 0000:e5:00.0 enp229s0: FW Up: LIFs restarted":
        ("rdma.adapter_failed", 0, "0000:e5:00.0", 0, "", {"state": "back"}),
    "ionic 0000:e5:00.0 enp229s0: TX_Q 3 tx timeout":
        ("rdma.driver_error", 0, "0000:e5:00.0", 0, "", {}),
    "ice 0000:31:00.0: Rebuild failed, unload and reload driver":
        ("rdma.adapter_failed", 0, "0000:31:00.0", 0, "", {}),
    "ice 0000:31:00.0: PF VSI rebuild failed: -5":
        ("rdma.adapter_failed", 0, "0000:31:00.0", 0, "", {}),
    "ice 0000:31:00.0: Firmware recovery mode detected. Limiting functionality. Refer to the Intel(R) Ethernet Adapters and Devices User Guide":
        ("rdma.adapter_failed", 0, "0000:31:00.0", 0, "", {}),
    "ice 0000:31:00.0 ens1f0: tx_timeout recovery unsuccessful, device is in unrecoverable state.":
        ("rdma.adapter_failed", 0, "0000:31:00.0", 0, "", {}),
    "ice 0000:31:00.0: The DDP package was successfully loaded: ICE OS Default Package version 1.3.30.0":
        ("rdma.adapter_failed", 0, "0000:31:00.0", 0, "", {"state": "back"}),
    "ice 0000:31:00.0 ens1f0: tx_timeout: VSI_num: 8, Q 12, NTC: 0x9a, HW_HEAD: 0x9a, NTU: 0x9c, INT: 0x0":
        ("rdma.driver_error", 0, "0000:31:00.0", 0, "", {}),
    "ice 0000:31:00.0: HMC Error - type 0x10":
        ("rdma.driver_error", 0, "0000:31:00.0", 0, "", {}),
    "mana 7870:00:00.0: HWC: Request timed out!":
        ("rdma.adapter_failed", 0, "7870:00:00.0", 0, "", {}),
    "mana 7870:00:00.0: Failed to send mana message: -110, 0x0":
        ("rdma.adapter_failed", 0, "7870:00:00.0", 0, "", {}),
    "mana 7870:00:00.0: Microsoft Azure Network Adapter protocol version: 0.1.1":
        ("rdma.adapter_failed", 0, "7870:00:00.0", 0, "", {"state": "back"}),
    "mana 7870:00:00.0 eth1: NETDEV WATCHDOG: CPU: 3: transmit queue 2 timed out 15032 ms":
        ("rdma.driver_error", 0, "7870:00:00.0", 0, "", {"queue": "2"}),
    "hns3 0000:bd:00.0: failed to reset VF stack":
        ("rdma.adapter_failed", 0, "0000:bd:00.0", 0, "", {}),
    "hns3 0000:bd:00.0: hclge reset failed":
        ("rdma.adapter_failed", 0, "0000:bd:00.0", 0, "", {}),
    "hns3 0000:bd:00.0: PPP_MPF_ABNORMAL_INT_ST3 upd_lookup_ecc_mbit_err found [error status=0x2]":
        ("rdma.driver_error", 0, "0000:bd:00.0", 0, "", {}),
    "hns3 0000:bd:00.0: HCLGE driver initialization finished.":
        ("rdma.adapter_failed", 0, "0000:bd:00.0", 0, "", {"state": "back"}),
    "infiniband rdmap16s27: Admin queue is closed":
        ("rdma.adapter_failed", 0, "rdmap16s27", 0, "", {}),
    "infiniband efa_0: Wait for completion (polling) timeout":
        ("rdma.adapter_failed", 0, "efa_0", 0, "", {}),
    "infiniband rdmap0s6: Reset indication didn't turn on":
        ("rdma.adapter_failed", 0, "rdmap0s6", 0, "", {}),
    # tasks
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/slurm/"
    "uid_1000/job_42,task_memcg=/slurm/uid_1000/job_42/step_0,task=python,pid=4711,uid=1000":
        ("host.out_of_memory", 0, "host", 4711, "python", {"cgroup": "/slurm/uid_1000/job_42/step_0"}),
    "Memory cgroup out of memory: Killed process 4711 (python) total-vm:24028712kB, anon-rss:23520756kB"
    ", file-rss:80kB, shmem-rss:0kB, UID:1000 pgtables:46792kB oom_score_adj:0":
        ("host.out_of_memory", 0, "host", 4711, "python", {"uid": "1000"}),
    "Out of memory: Killed process 7 (a (b) c) total-vm:1kB, anon-rss:1kB":
        ("host.out_of_memory", 0, "host", 7, "a (b) c", {}),
    "INFO: task python3:12345 blocked for more than 120 seconds.":
        ("host.hung_task", 0, "host", 12345, "python3", {"blocked_seconds": "120"}),
    "INFO: task kworker/3:1:88 blocked in I/O wait for more than 241 seconds.":
        ("host.hung_task", 0, "host", 88, "kworker/3:1", {}),
    "unregister_netdevice: waiting for eth0 to become free. Usage count = 2":
        ("host.hung_task", 0, "host", 0, "", {"interface": "eth0"}),
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]":
        ("host.lockup", 0, "host", 1234, "python", {"cpu": "3"}),
    "NMI watchdog: Watchdog detected hard LOCKUP on cpu 5": ("host.lockup", 1, "host", 0, "", {}),
    "watchdog: CPU5: Watchdog detected hard LOCKUP on cpu 5": ("host.lockup", 1, "host", 0, "", {}),
    "rcu: INFO: rcu_sched self-detected stall on CPU": ("host.lockup", 2, "host", 0, "", {}),
    "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:": ("host.lockup", 2, "host", 0, "", {}),
    "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-.... } 21 jiffies s: 5":
        ("host.lockup", 2, "host", 0, "", {}),
    "BUG: kernel NULL pointer dereference, address: 0000000000000008":
        ("host.kernel_fault", 0, "host", 0, "", {}),
    "kernel BUG at mm/slub.c:305!": ("host.kernel_fault", 0, "host", 0, "", {}),
    "Oops: 0002 [#1] SMP NOPTI": ("host.kernel_fault", 0, "host", 0, "", {}),
    "Oops: general protection fault, probably for non-canonical address 0xdead00: 0000 [#1] SMP":
        ("host.kernel_fault", 0, "host", 0, "", {}),
    "divide error: 0000 [#1] PREEMPT SMP": ("host.kernel_fault", 0, "host", 0, "", {}),
    "Internal error: Oops - BUG: 00000000f2000800 [#1] SMP":
        ("host.kernel_fault", 0, "host", 0, "", {}),
    "Internal error: synchronous external abort: 0000000096000410 [#1] SMP":
        ("host.kernel_fault", 0, "host", 0, "", {}),
    "SError Interrupt on CPU23, code 0x00000000be000411 -- SError":
        ("host.kernel_fault", 0, "host", 0, "", {"cpu": "23"}),
    "BUG: Bad page state in process python  pfn:19e1a3": ("host.kernel_fault", 0, "host", 0, "", {}),
    "general protection fault, probably for non-canonical address 0xdead00: 0000 [#1] SMP":
        ("host.kernel_fault", 0, "host", 0, "", {}),
    "Unable to handle kernel paging request at virtual address ffff80001234":
        ("host.kernel_fault", 0, "host", 0, "", {}),
    "Kernel panic - not syncing: Fatal machine check": ("host.kernel_fault", 0, "host", 0, "", {}),
    "watchdog: BUG: soft lockup - CPU#94 stuck for 226906s! [swapper/94:0]":
        ("host.lockup", 3, "host", 0, "swapper/94", {"stuck_seconds": "226906"}),
    "watchdog: BUG: soft lockup - CPU#3 stuck for 119s! [python:1234]":
        ("host.lockup", 0, "host", 1234, "python", {}),
    "INFO: task python3:12345 blocked for more than 1208 seconds.":
        ("host.hung_task", 1, "host", 12345, "python3", {"blocked_seconds": "1208"}),
    "INFO: task python3:12345 blocked for more than 599 seconds.":
        ("host.hung_task", 0, "host", 12345, "python3", {}),
    # file systems and disks
    "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm bash: reading directory "
    "lblock 0": ("filesystem.error", 0, "nvme0n1p2", 0, "bash", {"where": "ext4_find_entry"}),
    "EXT4-fs warning (device nvme0n1p2): ext4_end_bio:343: I/O error 10 writing to inode 131 starting block 99)":
        ("filesystem.error", 0, "nvme0n1p2", 0, "", {"where": "ext4_end_bio"}),
    "EXT4-fs (nvme0n1p2): Remounting filesystem read-only":
        ("filesystem.error", 1, "nvme0n1p2", 0, "", {}),
    "XFS (nvme0n1): Metadata corruption detected at xfs_inode_buf_verify+0x14/0x30":
        ("filesystem.error", 0, "nvme0n1", 0, "", {}),
    "XFS (dm-0): Filesystem has been shut down due to log error (0x2).":
        ("filesystem.error", 0, "dm-0", 0, "", {}),
    "BTRFS error (device sda1): parent transid verify failed on 1 wanted 2 found 3":
        ("filesystem.error", 0, "sda1", 0, "", {}),
    "BTRFS: error (device sda1) in btrfs_commit_transaction:2400: errno=-5 IO failure":
        ("filesystem.error", 0, "sda1", 0, "", {}),
    "BTRFS info (device sda1): forced readonly": ("filesystem.error", 1, "sda1", 0, "", {}),
    "BTRFS info (device sda1: state EA): forced readonly":
        ("filesystem.error", 1, "sda1", 0, "", {}),
    "XFS (nvme0n1): writeback error on inode 4711, offset 0, sector 12":
        ("filesystem.error", 0, "nvme0n1", 0, "", {}),
    "LustreError: 167-0: scratch-MDT0000-mdc-ffff8f: This client was evicted by scratch-MDT0000; in "
    "progress operations using this service will fail.":
        ("filesystem.error", 2, "scratch-MDT0000", 0, "", {"filesystem": "lustre"}),
    "Lustre: scratch-OST0001-osc-ffff8f: Connection to scratch-OST0001 (at 10.0.0.1@o2ib) was lost; in "
    "progress operations using this service will wait for recovery to complete":
        ("filesystem.error", 2, "scratch-OST0001", 0, "", {"server": "10.0.0.1@o2ib"}),
    "Aborting journal on device nvme0n1p2-8.": ("filesystem.error", 0, "nvme0n1p2-8", 0, "", {}),
    "nfs: server 10.1.2.3 not responding, still trying":
        ("filesystem.error", 2, "10.1.2.3", 0, "", {"filesystem": "nfs"}),
    "I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2":
        ("disk.error", 0, "nvme0n1", 0, "", {"operation": "READ", "sector": "2048"}),
    "blk_update_request: critical medium error, dev sda, sector 4711":
        ("disk.error", 0, "sda", 0, "", {"error": "critical medium"}),
    "Buffer I/O error on dev sda1, logical block 0, async page read": ("disk.error", 0, "sda1", 0, "", {}),
    "nvme nvme0: I/O 123 QID 4 timeout, aborting": ("disk.error", 0, "nvme0", 0, "", {}),
    "nvme nvme1: I/O tag 77 (104d) opcode 0x2 (I/O Cmd) QID 3 timeout, aborting req_op:READ(0) size:4096":
        ("disk.error", 0, "nvme1", 0, "", {}),
    "nvme nvme0: frozen state error detected, reset controller":
        ("disk.error", 0, "nvme0", 0, "", {}),
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10":
        ("disk.error", 0, "nvme0", 0, "", {}),
    "ata1.00: failed command: READ FPDMA QUEUED": ("disk.error", 0, "ata1.00", 0, "", {}),
    "Lustre: 2449:0:(client.c:2141:ptlrpc_expire_one_request()) @@@ Request sent has failed due to network error: [sent 1508144508/real 1508144518]  req@ffff880eb14da700 x1570198182041824/t0(0) o250->MGC192.0.2.87@o2ib@192.0.2.87@o2ib:26/25 lens 520/544":
        ("filesystem.error", 2, "MGC192.0.2.87", 0, "", {"filesystem": "lustre"}),
    "Lustre: 10110:0:(client.c:2116:ptlrpc_expire_one_request()) @@@ Request sent has timed out for sent delay: [sent 1630583819/real 0]  req@ffff8938cdda9500 x1709089496421552/t0(0) o38->fs-MDT0000-mdc-ffff88ddb2378000@192.0.2.151@tcp:12/10":
        ("filesystem.error", 2, "fs-MDT0000-mdc-ffff88ddb2378000", 0, "", {"filesystem": "lustre"}),
    "LNet: 2431:0:(o2iblnd_cb.c:3174:kiblnd_check_conns()) Timed out tx for 192.0.2.87@o2ib: 403661 seconds":
        ("filesystem.error", 2, "192.0.2.87@o2ib", 0, "", {"filesystem": "lustre"}),
    "LustreError: 11-0: fs-MDT0000-mdc-ffff88203810d800: operation obd_ping to node 192.0.2.88@o2ib failed: rc = -107":
        ("filesystem.error", 2, "192.0.2.88@o2ib", 0, "", {"filesystem": "lustre", "error": "-107"}),
    "libceph: mon0 (1)192.0.2.35:6789 session lost, hunting for new mon":
        ("filesystem.error", 2, "mon0", 0, "", {"filesystem": "ceph"}),
    "libceph: mon0 (1)192.0.2.80:3300 socket closed (con state V1_BANNER)":
        ("filesystem.error", 2, "mon0", 0, "", {"filesystem": "ceph"}),
    "libceph: mon0 192.0.2.10:3300 socket closed (con state CONNECTING)":
        ("filesystem.error", 2, "mon0", 0, "", {"filesystem": "ceph"}),
    "ceph: mds0 hung":
        ("filesystem.error", 2, "mds0", 0, "", {"filesystem": "ceph"}),
    "ceph: [fb30d64e-7a8c-46d3-bbd7-77a3b1f080d1 27315342]: mds0 reconnect denied":
        ("filesystem.error", 2, "mds0", 0, "", {"filesystem": "ceph"}),
    "beegfs: ConnWorker(4711) [Messaging (RPC)] >> Communication error: Receive timed out from: beegfs-storage node01 [ID: 1]":
        ("filesystem.error", 2, "host", 0, "", {"filesystem": "beegfs"}),
    "nvme nvme2: Removing after probe failure status: -19":
        ("disk.error", 1, "nvme2", 0, "", {"error": "-19"}),
    "nvme nvme0: Disabling device after reset failure: -19":
        ("disk.error", 1, "nvme0", 0, "", {"error": "-19"}),
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS read failed (134)":
        ("disk.error", 0, "nvme0", 0, "", {}),
    "nvme nvme2: I/O 0 QID 0 timeout, reset controller":
        ("disk.error", 0, "nvme2", 0, "", {}),
    "nvme nvme2: Device not ready; aborting reset":
        ("disk.error", 0, "nvme2", 0, "", {}),
    "nvme nvme0: I/O 897 QID 2 timeout, completion polled":
        ("disk.error", 0, "nvme0", 0, "", {}),
    "ata1.00: disabled":
        ("disk.error", 1, "ata1.00", 0, "", {}),
}  # fmt: skip

#: Similar lines without a fault.
#:
QUIET = (
    "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  590.48.01  Mon Dec  8 12:00:00 UTC 2025",
    "NVRM: GPU4 RPC history (CPU -> GSP):",
    "nvidia-nvswitch0: open (major=510)",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "mlx5_core 0000:98:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:98:00.0: mlx5_cmd_out_err:838:(pid 12): ACCESS_REG(0x805) failed, err(-22)",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Opts: (null)",
    "XFS (nvme0n1): Mounting V5 Filesystem",
    "EDAC MC: Ver: 3.0.0",
    "pcieport 0000:80:01.1: AER: enabled with IRQ 34",
    "I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
    "HEST: Table parsing has been initialized.",
    "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "rcu: RCU calculated value of scheduler-enlistment delay is 25 jiffies.",
    "audit: type=1400: apparmor denied NVRM: Xid (PCI:0000:9b:00): 79, of a user",
    "WARNING: CPU: 3 PID: 1 at kernel/sched/core.c:1 x+0x1/0x2",
    "nvme nvme0: 16/0/0 default/read/poll queues",
    "nvme nvme0: failed to set APST feature (2)",
    "critical target error, dev sda, sector 1 op 0x3:(DISCARD) flags 0x800 phys_seg 1 prio class 2",
    "blk_update_request: critical target error, dev nvme0n1, sector 0 op 0x9:(WRITE_ZEROES) flags 0x0",
    "operation not supported error, dev nvme0n1, sector 0 op 0x9:(WRITE_ZEROES) flags 0x800",
    "reservation conflict error, dev sdc, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
    "I/O error, dev nbd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
    "EXT4-fs (loop0): mounting read-only",
    "mlx5_core 0000:5e:00.0: mlx5_pcie_event:305:(pid 21): PCIe slot advertised sufficient power (75W).",
    "efa 0000:10:1b.0 rdmap16s27: Failed to process command CREATE_QP (opcode 1) comp_status 3 err -12",
    "NETDEV WATCHDOG: eth0 (r8169): transmit queue 0 timed out",
    "pcieport 0000:80:01.1: pciehp: Slot(3): Link Up",
    "pcieport 0000:80:01.1: pciehp: Slot(3): Link Down/Up ignored (recovered by DPC)",
    "pciehp 0000:80:01.1:pcie004: Slot(3): Link Down event queued; currently getting powered on",
    "pcieport 0000:80:01.1: pciehp: Slot(3): Card present",
    "EXT4-fs warning (device sda1): ext4_dirblock_csum_verify:405: inode #2: comm ls: No space for directory leaf checksum",
    "mlx5_core 0000:98:00.0: health recovery flow is not needed",
    "mlx5_core 0000:13:00.0: mlx5_pcie_event:297:(pid 11): PCIe slot power capability was not advertised.",
    "mlx5_core 0000:98:00.0: firmware: failed to load mellanox/fw.mfa2 (-2)",
    "BUG: arch topology borken",
    "BUG: non-zero pgtables_bytes on freeing mm: 4096",
    "NVRM: GPU0 kgspCheckGspRmCcCleanup_GH100: CC secret cleanup successful!",
    "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
    "usb 1-1: Product: NVRM: Xid (PCI:0000:9b:00): 79",
    "cgroup: fork rejected by pids controller in /docker/NVRM: Xid (PCI:0000:9b:00): 79",
    "python[4711]: segfault at 8 ip 00007f00 sp 00007f01 error 4 in libcuda.so.570[7f00+1000]",
    "traps: python[4711] general protection fault ip:7f00 sp:7f01 error:0 in libc.so[7f00+1000]",
    "INFO: lockdep is turned off.",
    "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c3:00.0: amdgpu: {17}socket: 4, die: 0, 3 correctable hardware errors detected in total in gfx block",
    "amdgpu 0000:04:00.0: amdgpu: GPU reset(2) succeeded!",
    "amdgpu 0000:04:00.0: amdgpu: Starting gfx_0.0.0 ring reset",
    "amdgpu 0000:04:00.0: amdgpu: Ring gfx_0.0.0 reset succeeded",
    "amdgpu 0000:09:00.0: [drm] device wedged, but recovered through reset",
    "amdgpu 0000:09:00.0: [drm] device wedged, but no recovery needed",
    "amdgpu 0000:63:00.0: amdgpu: SMU is resuming...",
    "amdgpu 0000:63:00.0: amdgpu: SMU is initialized successfully!",
    "amdgpu 0000:63:00.0: amdgpu: smu driver if version = 0x0000000d, smu fw if version = 0x00000010",
    "amdgpu 0000:63:00.0: amdgpu: ring kiq_0.2.1.0 uses VM inv eng 11 on hub 0",
    "amdgpu 0000:63:00.0: amdgpu: [drm] Loading DMUB firmware via PSP: version=0x08004100",
    "amdgpu 0000:63:00.0: amdgpu: psp gfx command LOAD_TA(0x1) failed and response status is (0x7)",
    "kfd kfd: amdgpu: added device 1002:67df",
    "amdgpu: Topology: Add dGPU node [0x67df:0x1002]",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process  pid 0 thread  pid 0",
    "[drm] Fence fallback timer expired on ring gfx",
    "NVRM: mmuWalkUnmap: Failed to unmap VA Range 0x7f2000000 to 0x7f21fffff. Status = 0x00000040",
    "NVRM: os_schedule: Attempted to yield the CPU while in atomic or interrupt context",
    "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: (status == NV_OK) || (status == NV_ERR_GPU_IN_FULLCHIP_RESET) @ mem.c:178",
    "NVRM: nvAssertFailedNoLog: Assertion failed: (rmStatus == NV_OK) || (rmStatus == NV_ERR_GPU_IS_LOST) @ a.c:1",
    "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: 0 @ kernel_gsp.c:1446",
    "NVRM: gpuHandleSanityCheckRegReadError_GM107: Possible bad register read: addr: 0x88eb0,  regvalue: 0xbadf5040",
    "NVRM: kgspInitRm_IMPL: skipping allocating Scrubber ucode as pre-scrubbed memory is sufficient (0x7700000)",
    "NVRM kgspExecuteBooterUnloadIfNeeded_TU102: skipping executing Booter Unload as WPR is not up",
    "NVRM: GPU0 _kgspProcessRpcEvent: Attempted to process RPC event from GPU0: 0x101a (X) during bootup without API lock",
    "NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.",
    "NVRM: GPU Board Serial Number: 1650000000001",
    "NVRM: cpuidInfoAMD: Unrecognized AMD processor in cpuidInfoAMD",
    "nvidia-modeset: WARNING: GPU:0: Correcting number of heads for current head configuration (0x00)",
    "nvidia-uvm: Loaded the UVM driver, major device number 235.",
    "nvidia-uvm: uvm_pmm_gpu.c:3176 devmem_alloc_pagemap[pid:92821] request_free_mem_region() err -34",
    "amdgpu 0000:04:00.0: amdgpu: ring gfx_0.0.0 test failed",
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: hwrm req_type 0x42 seq id 0x1f3c error 0x4",
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: EEE is not active",
    "bnxt_en 0000:c2:00.0: Unable to read VPD",
    "bnxt_en 0000:c2:00.0 enp194s0f0np0: Devlink health reporter",
    "infiniband bnxt_re0: Device Registered Successfully",
    "ionic 0000:e5:00.0: attached",
    "ionic 0000:e5:00.0 enp229s0: FW loaded: 1.99.0",
    "ice 0000:31:00.0: Get PHY capability failed status = -5",
    "ice 0000:31:00.0: fw 6.2.9 api 1.7.9 nvm 3.20 0x8000d83e 1.3146.0",
    "ice 0000:31:00.0: 126.016 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x8 link)",
    "irdma 0000:31:00.0: Initialize RDMA",
    "mana 7870:00:00.0: enabling device (0000 -> 0002)",
    "mana 7870:00:00.0 eth1: Enslaved to eth0",
    "hns3 0000:bd:00.0: The firmware version is 1.9.40.10",
    "hns3 0000:bd:00.0 eno1: net open",
    "infiniband rdmap16s27: Failed to process command CREATE_QP (opcode 1) comp_status 3 err -12",
    "infiniband mlx5_0: set_roce_addr: 512 Error (-22) setting GID",
    "pcieport 0000:80:01.1: AER: aer_inject -- Injecting errors",
    "Lustre: Lustre: Build Version: 2.15.4",
    "Lustre: Mounted fs-client",
    "Lustre: fs-MDT0000-mdc-000000001785e248: Connection restored to 192.0.2.232@tcp (at 192.0.2.232@tcp)",
    "Lustre: 2449:0:(client.c:2141:ptlrpc_expire_one_request()) Skipped 24 previous similar messages",
    "LustreError: 11-0: fs-MDT0000-mdc-ffff88203810d800: operation ldlm_enqueue succeeded",
    "LNet: Added LNI 192.0.2.7@o2ib [8/256/0/180]",
    "libceph: mon2 (1)192.0.2.247:6789 session established",
    "libceph: osd2 (1)192.0.2.249:6801 socket closed (con state OPEN)",
    "libceph: loaded (mon/osd proto 15/24)",
    "ceph: mds0 reconnect start",
    "ceph: mds0 caps renewed",
    "beegfs: Client(1) [App] >> Version: 7.4.2",
    "nvme nvme0: Shutdown timeout set to 8 seconds",
    "nvme nvme0: missing or invalid SUBNQN field.",
    "nvme nvme0: Ignoring bogus Namespace Identifiers",
    "nvme nvme0: allocated 16 MiB host memory buffer.",
    "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
    "ata2.00: disabled by quirk",
)

#: The kernel's text after a process' name, with other parts that a user chose.
OF_A_PROCESS = (
    "[4711]: segfault at 0 ip 0000000000401000 sp 00007ffc00000000 error 4 in {}[400000+1000]",
    "[4711] general protection fault ip:401000 sp:7ffc00000000 error:0 in {}[400000+1000]",
    "[4711] bad frame in rt_sigreturn frame:00 ip:0 sp:0 orax:0 in {}[400000+1000]",
    "[4711]: unhandled exception: SP/PC alignment, ESR 0x0000000056000000, SP alignment in {}[1+1]",
    " invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    ": page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL), nodemask=(null),cpuset={}",
    " (4711): drop_caches: 3",
)

ACTION = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x3 (x) to {}"
LINK = "NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link {:02} (0x025001c6 0x0)"
SWITCH_LINK = (
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12020, Fatal, Link {} egress error (First)"
)


@pytest.mark.parametrize("line", LINES)
def test_a_line_and_what_it_tells(line: str) -> None:
    """Each of these lines was a real fault; none may be missed."""
    notice = classify(line)
    assert notice is not None
    name, code, device, process_id, process_name, attributes = LINES[line]
    assert notice[:3] == (name, code, device)
    assert (notice.process_id, notice.process_name) == (process_id, process_name)
    assert attributes.items() <= notice.attributes.items()
    assert notice.part is not LinePart.DETAIL


@pytest.mark.parametrize("line", QUIET)
def test_lines_that_tell_of_nothing_wrong(line: str) -> None:
    """A false alarm at every boot teaches operators to ignore alarms."""
    assert classify(line) is None


@pytest.mark.parametrize("line", [*LINES, "NVRM:0000:9b:00 fallen off the bus", "ata1: disabled"])
def test_a_user_cannot_make_the_kernel_say_it(line: str) -> None:
    """A program named `NVRM:0000:9b:00` crashed in a file named `fallen off the bus`: a host was
    drained.

    These lines have facility 0; they begin with 15 characters of the process' name.
    """
    for length in range(1, 16):
        for form in OF_A_PROCESS:
            for file in (line, line[length:]):
                text = line[:length] + form.format(file.replace("/", "_")[:255])
                assert classify(text) is None, text


@pytest.mark.parametrize("word", ["BUG", "Oops", "NVRM", "LustreError", "watchdog"])
def test_a_user_who_names_an_interface_says_nothing(word: str) -> None:
    """Each owner of a user namespace names its interfaces; a name contains no blanks and no colons."""
    for form in (
        "{}: entered promiscuous mode",
        "{}: renamed from eth0",
        "{}: Caught tx_queue_len",
    ):
        assert classify(form.format(word)) is None


@pytest.mark.parametrize(
    ("line", "group", "attributes"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12020, Severity 1 Engine instance 46",
            "sxid 0000:c1:00.0",
            {},
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12020, Data {0x00000000, 0x00000001}",
            "sxid 0000:c1:00.0",
            {"data": "0x00000000, 0x00000001"},
        ),
        (
            "nvidia 0000:81:00.0:   device [10de:2330] error status/mask=00000001/0000a000",
            "aer 0000:81:00.0",
            {"status": "00000001"},
        ),
        ("nvidia 0000:81:00.0:    [ 0] RxErr                  (First)", "aer", {"error": "RxErr"}),
        ("nvidia 0000:81:00.0: AER:    [14] CmpltTO", "aer", {"error": "CmpltTO"}),
        (f"{{1}}{ERROR}   section_type: PCIe error", "ghes", {"section": "PCIe error"}),
        (
            f"{{1}}{ERROR}   section type: unknown, e8ed898d",
            "ghes",
            {"section": "unknown, e8ed898d"},
        ),
        (f"{{1}}{ERROR}   device_id: 0000:81:00.0", "ghes", {"pci_address": "0000:81:00.0"}),
        (f"mce: {ERROR} PROCESSOR 0:606a6 TIME 1 SOCKET 1 APIC 40", "mce", {"socket": "1"}),
        ("CPU: 3 UID: 0 PID: 88 Comm: python Not tainted 6.18.0", "fault", {"cpu": "3"}),
    ],
)
def test_details_of_the_line_before(line: str, group: str, attributes: dict[str, str]) -> None:
    """One PCIe error is five lines: it must not count five times."""
    notice = classify(line)
    assert notice is not None and notice.part is LinePart.DETAIL
    assert notice.group.startswith(group)
    assert attributes.items() <= notice.attributes.items()


def test_every_event_of_the_table_is_in_the_catalogue() -> None:
    """An event without a catalogue entry would be stored but never judged; and vice versa."""
    named = {rule.name for rule in RULES}
    assert all(BY_NAME[name].kind is Kind.EVENT for name in named)
    ids = {*range(2210, 2225), 2226, 2227, 2228, 2720, 2721, 2722}
    rows = {s.name for s in BY_NAME.values() if s.signal_id in ids}
    assert rows == named - {"gpu.xid", "gpu.lost"}  # reported by NVML as well


def test_a_line_without_an_address_is_of_the_gpu_that_leaves_no_doubt() -> None:
    """ "GPU4" of NVIDIA's driver is not an index of nvidia-smi: of eight GPUs a wrong one would be
    reset.
    """
    lines = {
        "numbered": "NVRM: GPU4 _kgspRpcRecvPoll: GSP RM heartbeat timed out",
        "xid": "NVRM: Xid (PCI:0000:9B:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response "
        "from GPU4 GSP! Expected function 103",
        "amd": "amdgpu: Failed to evict process queues",
        "host": "EXT4-fs error (device sda1): x: y",
    }

    def found(finder: GpuFinder, line: str) -> str:
        parsed = classify(lines[line])
        assert parsed is not None
        return finder.complete(parsed, lines[line]).device

    alone = GpuFinder(lambda: ["0000:01:00.0"], lambda: ["0000:c5:00.0"])
    assert found(alone, "numbered") == "0000:01:00.0" and found(alone, "amd") == "0000:c5:00.0"
    assert found(alone, "host") == "sda1"
    eight = GpuFinder(lambda: [f"0000:{i:02x}:00.0" for i in range(8)], list)
    assert found(eight, "numbered") == found(eight, "amd") == "host"
    assert found(eight, "xid") == "0000:9b:00.0"
    assert found(eight, "numbered") == "0000:9b:00.0"  # the XID has both names


def check_limits(notice: ParsedLine) -> None:
    texts = [notice.device, notice.process_name, notice.scope, *notice.attributes.values()]
    for text in texts:
        text.encode()
        assert text.isprintable()
    assert 0 < len(notice.device) <= NAME_CHARACTERS_MAX
    assert len(notice.process_name) <= NAME_CHARACTERS_MAX
    assert len(notice.attributes) <= ATTRIBUTES_MAX
    assert max(map(len, texts)) <= VALUE_CHARACTERS_MAX
    assert 0 <= notice.code < 1 << 32 and 0 <= notice.process_id < 1 << 32
    assert notice.occurrences >= 0


@settings(max_examples=300)
@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    if notice := classify(text):
        check_limits(notice)


@settings(max_examples=500, deadline=None)
@given(
    line=st.sampled_from([*LINES]),
    at=st.integers(0, 300),
    size=st.integers(0, 40),
    rubbish=st.one_of(
        st.text(max_size=30), st.sampled_from(["9" * 40, "\n", "x" * 5000, "\0", ")"])
    ),
)
def test_a_damaged_line_within_its_limits(line: str, at: int, size: int, rubbish: str) -> None:
    """Two CPUs printed at once, and the ring cut the end."""
    notice = classify(line[:at] + rubbish + line[at + size :])
    if notice is not None:
        check_limits(notice)
        check_limits(XidDecoder(lambda: "575.57.08").decode(notice, line))


def test_a_line_of_64_kilobytes_costs_no_more_than_its_beginning() -> None:
    """Only the beginning of a dump in one line is parsed."""
    assert classify("x" * 65536 + "NVRM: Xid (PCI:0000:9b:00): 79, x") is None
    assert classify("NVRM: Xid (PCI:0000:9b:00): 79, " + "x" * 65536) is not None


@pytest.mark.parametrize(
    "lines",
    [
        [ACTION.format(f"0x{n} ({text})") for n, text in enumerate(
            ("None", "GPU Reset Required", "Node Reboot Required"))],
        [LINK.format(3), LINK.format(12), SWITCH_LINK.format(3), SWITCH_LINK.format(12)],
    ],
    ids=["XID 154 first requests a reset, and later nothing", "link 3 half a minute after link 12"],
)  # fmt: skip
def test_each_line_has_its_scope(lines: list[str]) -> None:
    scopes = set()
    for line in lines:
        notice = classify(line)
        assert notice is not None
        scopes.add((notice.name, XidDecoder(lambda: "580.65.06").decode(notice, line).scope))
    assert len(scopes) == len(lines)


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data here")
def test_a_real_log_with_a_hung_gsp() -> None:
    """Five XID 119 of one GPU, by three processes, between a stack trace and tables."""
    lines = (SHARED / "dmesg-with-xid-119.log").read_text().splitlines()
    result = [n for line in lines if (n := classify(re.sub(r"^\[[^]]*\] ", "", line)))]
    reported = [
        (n.name, n.code, n.device, n.process_name) for n in result if n.part is not LinePart.DETAIL
    ]
    message = ("gpu.needs_reset", 0, "0000:9b:00.0", "")
    assert [each for each in reported if each != message] == [
        ("gpu.xid", 119, "0000:9b:00.0", name)
        for name in ("nvidia-smi",) * 3 + ("cache_mgr_main", "gpud")
    ]
    assert reported.count(message) == 1


@pytest.mark.skipif(not SHARED.exists(), reason="no ../shared/data here")
def test_a_real_log_of_an_ordinary_boot() -> None:
    """Switches opened, container links came up: no fault."""
    records = (SHARED / "kmsg.1.log").read_bytes().splitlines()
    assert len(records) > 40
    assert [n for data in records if (n := classify(parse_record(data).text))] == []
