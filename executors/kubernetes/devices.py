"""Takes out single GPUs instead of their node, by `DeviceTaintRule` (dynamic resource allocation) if the API server has it.

Each rule is a separate object, so no foreign object is changed. An annotation holds the rule's end, because Kubernetes
expires no rule.
"""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..model import EVICT_SUFFIX, HOLD_PREFIX, NODE_NAME, NodeHold
from .api import MERGE_PATCH, ApiError, ApiServer
from .marks import AVOID_TAINT, HOLDS_ANNOTATION, format_holds, parse_holds

log = logging.getLogger(__name__)

GROUP = "resource.k8s.io"
RULES, SLICES = "devicetaintrules", "resourceslices"
NODE_ANNOTATION, DEVICE_ANNOTATION = "gangline.io/node", "gangline.io/device"
#: Label of executors' rules; rules are listed by this label.
LABEL = "gangline.io/executor"
#: Attributes with the GPU's UUID of NVML; drivers use different names.
UUID_ATTRIBUTES = ("uuid", "gpu.nvidia.com/uuid", "resource.kubernetes.io/uuid")
#: Further rules are ignored.
RULES_MAX = 10_000
#: An advisory of more GPUs of a node takes out the whole node.
DEVICES_MAX = 4


@dataclass(frozen=True, slots=True)
class SlicedDevice:
    """A device that a driver publishes in a resource slice."""

    driver: str
    pool: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """A rule of an executor. `holds`: hold -> end in seconds since the epoch."""

    name: str
    node: str
    device: str
    holds: Mapping[str, float]


def parse_rule(document: Any) -> DeviceRule | None:
    """Return the rule in *document*; None if no executor made it. Raises KeyError, TypeError, AttributeError."""
    metadata = document["metadata"]
    if LABEL not in (metadata.get("labels") or {}):
        return None
    annotations = metadata.get("annotations") or {}
    node = str(annotations.get(NODE_ANNOTATION, ""))
    if not NODE_NAME.fullmatch(node):
        return None
    holds = parse_holds(str(annotations.get(HOLDS_ANNOTATION, "")))
    return DeviceRule(
        str(metadata["name"]), node, str(annotations.get(DEVICE_ANNOTATION, ""))[:120], holds
    )


def find_devices(slices: Iterable[Any], node: str, uuids: Sequence[str]) -> list[SlicedDevice]:
    """Return the devices of *node* with *uuids*; [] unless each UUID has exactly one device.

    *slices*: ResourceSlice objects as JSON, of any API version.
    """
    wanted, found = {uuid.lower() for uuid in uuids}, dict[str, set[SlicedDevice]]()
    for one in slices:
        try:
            spec = one["spec"]
            if node not in (spec.get("nodeName"), spec["pool"]["name"]):
                continue
            for device in spec.get("devices") or []:
                # Up to v1beta1 the attributes of a device are in `basic`.
                attributes = (device.get("basic") or device).get("attributes") or {}
                for key in UUID_ATTRIBUTES:
                    uuid = str((attributes.get(key) or {}).get("string", "")).lower()
                    if uuid in wanted:
                        names = spec["driver"], spec["pool"]["name"], device["name"]
                        found.setdefault(uuid, set()).add(SlicedDevice(*map(str, names)))
        except (KeyError, TypeError, AttributeError):
            continue
    if found.keys() != wanted or any(len(devices) != 1 for devices in found.values()):
        return []
    return sorted(
        (device for devices in found.values() for device in devices), key=lambda one: one.name
    )


def rule_of(
    hold: str, node: str, device: SlicedDevice, ends: float, evicts: bool
) -> dict[str, Any]:
    """Return the rule that taints *device* until *ends*."""
    advisory = hold.removeprefix(HOLD_PREFIX).removesuffix(EVICT_SUFFIX)
    return {
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": f"{hold.replace('_', '-')}.{device.name}"[:250], "labels": {LABEL: "gangline"},
            "annotations": {HOLDS_ANNOTATION: format_holds({hold: ends}), NODE_ANNOTATION: node, DEVICE_ANNOTATION: device.name},
        },
        "spec": {
            "deviceSelector": {"driver": device.driver, "pool": device.pool, "device": device.name},
            "taint": {"key": AVOID_TAINT, "value": advisory, "effect": "NoExecute" if evicts else "NoSchedule"},
        },
    }  # fmt: skip


class DeviceRules:
    """Executors' device taint rules at *api*. All methods raise ApiError."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        #: Paths of rules and of slices; "" for a resource that the API server lacks. None: not read yet.
        self._paths: tuple[str, str] | None = None

    def is_offered(self) -> bool:
        """Return whether the API server has device taint rules and resource slices."""
        return all(self._offered())

    def _offered(self) -> tuple[str, str]:
        if self._paths is None:
            self._paths = self._find(RULES), self._find(SLICES)
            if not all(self._paths):
                log.warning(
                    "this API server has no %s: an advisory of one GPU takes out its node", RULES
                )
        return self._paths

    def _find(self, resource: str) -> str:
        """Return the path of *resource* in the most preferred API version with this resource; "" for none."""
        try:
            group = self._api.call("GET", f"/apis/{GROUP}")
        except ApiError as error:
            if error.status in (403, 404):
                return ""
            raise
        offered = [str(one.get("version")) for one in group.get("versions") or []]
        for version in offered:
            resources = self._api.call("GET", f"/apis/{GROUP}/{version}").get("resources") or []
            if any(one.get("name") == resource for one in resources):
                return f"/apis/{GROUP}/{version}/{resource}"
        return ""

    def read(self) -> list[DeviceRule]:
        """Return the rules of executors."""
        path, _ = self._offered()
        if not path:
            return []
        selector = urllib.parse.quote(LABEL, safe="")
        found, _ = self._api.list_all(path, f"&labelSelector={selector}")
        rules = (_quietly(one) for one in found[:RULES_MAX])
        return [rule for rule in rules if rule is not None]

    def devices(self, node: str, uuids: Sequence[str]) -> list[SlicedDevice]:
        """Return the devices of *node* with *uuids* to taint one by one; [] if the whole node must be taken out."""
        if not 0 < len(uuids) <= DEVICES_MAX or not self.is_offered():
            return []
        slices, _ = self._api.list_all(self._offered()[1])
        return find_devices(slices, node, uuids)

    def place(
        self, hold: str, node: str, devices: Iterable[SlicedDevice], ends: float, evicts: bool
    ) -> None:
        """Taint *devices* until *ends*; for an existing rule change only the end."""
        path, _ = self._offered()
        for device in devices:
            rule = rule_of(hold, node, device, ends, evicts)
            rule["apiVersion"] = "/".join(path.split("/")[2:4])
            try:
                self._api.call("POST", path, rule)
            except ApiError as error:
                if error.status != 409:
                    raise
                self._write_end(rule["metadata"]["name"], hold, ends)

    def extend(self, hold: str, ends: float) -> bool:
        """Move the end of the rules of *hold*; return whether any rule exists."""
        rules = [rule for rule in self.read() if hold in rule.holds]
        for rule in rules:
            self._write_end(rule.name, hold, ends)
        return bool(rules)

    def _write_end(self, name: str, hold: str, ends: float) -> None:
        patch = {"metadata": {"annotations": {HOLDS_ANNOTATION: format_holds({hold: ends})}}}
        self._api.call(
            "PATCH", f"{self._offered()[0]}/{urllib.parse.quote(name)}", patch, MERGE_PATCH
        )

    def remove(self, hold: str) -> None:
        """Remove the rules of *hold*."""
        for rule in self.read():
            if hold in rule.holds:
                self._delete(rule)

    def remove_expired(self, now: float) -> None:
        """Remove expired rules and rules without an end."""
        for rule in self.read():
            if all(ends <= now for ends in rule.holds.values()):
                log.info("removed rule %s, because it has expired or has no end", rule.name)
                self._delete(rule)

    def _delete(self, rule: DeviceRule) -> None:
        try:
            self._api.call("DELETE", f"{self._offered()[0]}/{urllib.parse.quote(rule.name)}")
        except ApiError as error:
            if error.status != 404:
                raise


def _quietly(document: Any) -> DeviceRule | None:
    try:
        return parse_rule(document)
    except (KeyError, TypeError, AttributeError):
        return None


def device_holds(rules: Iterable[DeviceRule]) -> dict[str, NodeHold]:
    """Return the holds of *rules* by name."""
    found: dict[str, NodeHold] = {}
    for rule in rules:
        for name, ends in rule.holds.items():
            before = found.get(name, NodeHold(name, frozenset()))
            devices = (*before.devices, rule.device)
            found[name] = NodeHold(
                name, before.nodes | {rule.node}, max(before.ends, ends), devices
            )
    return found
