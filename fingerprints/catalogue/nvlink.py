"""NVLinks of each GPU, and its links to a Grace CPU (C2C). Device: `GPU-uuid/link0`, `GPU-uuid/c2c0`."""

from .signal import Kind, Pace, Signal


def _fec(symbols: int) -> Signal:
    return Signal(1356 + symbols, f"nvlink.fec_history_{symbols}_count", Kind.COUNTER, Pace.TEN_SECONDS, f"field {235 + symbols} NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_{symbols}", f"blocks in which error correction mended {symbols} symbols; weight moving to higher bins is a link going bad")


SIGNALS = (
    Signal(1350, "nvlink.transmitted_data_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "field 138 NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KiB", "payload sent over the link"),
    Signal(1351, "nvlink.received_data_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "field 139 NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KiB", "payload received over the link"),
    Signal(1352, "nvlink.transmitted_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "field 202 NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES (NVLink 5)", "all bytes sent over the link"),
    Signal(1353, "nvlink.received_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "field 204 NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES (NVLink 5)", "all bytes received over the link"),
    Signal(1354, "nvlink.transmitted_packets", Kind.COUNTER, Pace.TEN_SECONDS, "field 201 NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS (NVLink 5)", "packets sent"),
    Signal(1355, "nvlink.received_packets", Kind.COUNTER, Pace.TEN_SECONDS, "field 203 NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS (NVLink 5)", "packets received"),
    *(_fec(symbols) for symbols in range(16)),
    Signal(1380, "nvlink.link_state", Kind.STATE, Pace.TEN_SECONDS, "field 165 NVML_FI_DEV_NVLINK_GET_STATE, else nvmlDeviceGetNvLinkState", "0 inactive, 1 active, 2 asleep, 3 active but no traffic allowed", on_change=True),
    Signal(1381, "nvlink.version_code", Kind.STATE, Pace.TEN_SECONDS, "field 166 NVML_FI_DEV_NVLINK_GET_VERSION", "nvmlNvlinkVersion_t: 4 is 3.0, 6 is 4.0, 7 is 5.0", on_change=True),
    Signal(1382, "nvlink.speed_bytes_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "field 164 NVML_FI_DEV_NVLINK_GET_SPEED, else NVML_FI_DEV_NVLINK_SPEED_MBPS_L*, _COMMON", "pace of the link in one direction", on_change=True),
    Signal(1383, "nvlink.replay_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 161 NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, else NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L* (before NVLink 5)", "transmissions that were repeated", on_change=True),
    Signal(1384, "nvlink.recovery_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 162 NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, else NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L* (before NVLink 5)", "times the link had to be trained again", on_change=True),
    Signal(1385, "nvlink.crc_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 163 NVML_FI_DEV_NVLINK_ERROR_DL_CRC (before NVLink 5)", "checksum errors", on_change=True),
    Signal(1386, "nvlink.crc_flit_errors", Kind.COUNTER, Pace.TEN_SECONDS, "fields NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L* (links 0-11)", "checksum errors of flow control", on_change=True),
    Signal(1387, "nvlink.crc_data_errors", Kind.COUNTER, Pace.TEN_SECONDS, "fields NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L* (links 0-11)", "checksum errors of data", on_change=True),
    Signal(1388, "nvlink.ecc_data_errors", Kind.COUNTER, Pace.TEN_SECONDS, "fields NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L* (links 0-11)", "bit errors of data that were repaired", on_change=True),
    Signal(1389, "nvlink.malformed_packets_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 206 NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS (NVLink 5)", "packets received that were none", on_change=True),
    Signal(1390, "nvlink.buffer_overrun_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 207 NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS (NVLink 5)", "packets discarded for want of room", on_change=True),
    Signal(1391, "nvlink.receive_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 208 NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS (NVLink 5)", "packets received with errors", on_change=True),
    Signal(1392, "nvlink.receive_remote_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 209 NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS (NVLink 5)", "packets that the far side marked as bad", on_change=True),
    Signal(1393, "nvlink.receive_general_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 210 NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS (NVLink 5)", "packets whose header did not fit", on_change=True),
    Signal(1394, "nvlink.local_link_integrity_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 211 NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS (NVLink 5)", "times that local errors passed a threshold", on_change=True),
    Signal(1395, "nvlink.transmit_discards_packets", Kind.COUNTER, Pace.TEN_SECONDS, "field 212 NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS (NVLink 5)", "packets with errors that were not sent", on_change=True),
    Signal(1396, "nvlink.link_recovery_successful_events", Kind.COUNTER, Pace.TEN_SECONDS, "field 213 NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS (NVLink 5)", "recoveries after which the link was up again", on_change=True),
    Signal(1397, "nvlink.link_recovery_failed_events", Kind.COUNTER, Pace.TEN_SECONDS, "field 214 NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS (NVLink 5)", "recoveries after which the link was declared down", on_change=True),
    Signal(1398, "nvlink.link_recovery_events", Kind.COUNTER, Pace.TEN_SECONDS, "field 215 NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS (NVLink 5)", "recoveries, however they ended", on_change=True),
    Signal(1399, "nvlink.effective_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 219 NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS (NVLink 5)", "errors left after correction", on_change=True),
    Signal(1400, "nvlink.effective_bit_error_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "field 220 NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER (NVLink 5), mantissa and exponent", "share of bits wrong after correction; 1.5e-254 is what a link says that has had none", on_change=True),
    Signal(1401, "nvlink.symbol_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 221 NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS (NVLink 5)", "symbols received wrong", on_change=True),
    Signal(1402, "nvlink.symbol_bit_error_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "field 222 NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER (NVLink 5), mantissa and exponent", "share of symbols wrong", on_change=True),
    Signal(1430, "c2c.link_state", Kind.STATE, Pace.TEN_SECONDS, "field 171 NVML_FI_DEV_C2C_LINK_GET_STATUS", "0 inactive, 1 active", on_change=True),
    Signal(1431, "c2c.speed_max_bytes_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "field 172 NVML_FI_DEV_C2C_LINK_GET_MAX_BW", "pace there could be between GPU and CPU", on_change=True),
    Signal(1432, "c2c.crc_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 231 NVML_FI_DEV_C2C_LINK_ERROR_INTR", "checksum errors", on_change=True),
    Signal(1433, "c2c.replay_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 232 NVML_FI_DEV_C2C_LINK_ERROR_REPLAY", "transmissions that were repeated", on_change=True),
    Signal(1434, "c2c.replay_back_to_back_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 233 NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B", "repetitions right after each other", on_change=True),
    Signal(1435, "c2c.power_state", Kind.STATE, Pace.TEN_SECONDS, "field 234 NVML_FI_DEV_C2C_LINK_POWER_STATE", "0 full power, 1 low power", on_change=True),
)
