"""Lines of network drivers: mlx5_core's trouble with its device, and links that come and go.

Formats: drivers/net/ethernet/mellanox/mlx5/core (health.c, cmd.c, events.c), netdev_printk
(`driver address interface: words`), drivers/net/bonding/bond_main.c.
"""

from __future__ import annotations

from .notice import BDF, rule

RDMA, LINK = "rdma.driver_error", "net.link_message"

_UP_DOWN = ("state", {"down": 0, "up": 1})
_STATE = r"(?:is )?(?P<state>[Uu]p|[Dd]own|UP|DOWN)\b"

#: What of mlx5_core's lines is about the device, and not about what somebody asked of it.
_MLX5 = (
    r"health compromised",
    r"[Hh]ealth issue observed",
    r"firmware (?:internal )?error",
    r"[Ff]atal (?:error|state)",
    r"unrecoverable",
    r"assert_(?:var|exit_ptr|callra)",
    r"Port module event\[error\]",
    r"Port module event: module \d+, Cable unplugged",
    r"[Hh]igh [Tt]emperature",
    r"poll_health.{0,80}(?:miss|fail|error)",
    r"timeout\. Will cause a leak",
    r"No done completion",
    r"enter(?:ing)? error state",
    r"mlx5_enter_error_state",
    r"NIC (?:sw|SW) reset",
    r"PCI slot is unavailable",
    r"device is in error|device in error state",
    r"(?<!firmware: )[Ff]ailed (?:to )?(?:recover|load)",
    r"mlx5_(?:init|load)_one failed",
    r"initializing state, aborting",
    r"TX timeout detected",
)
_ANY_MLX5 = "|".join(_MLX5)

RULES = (
    rule(
        RDMA,
        "mlx5_core ",
        rf"mlx5_core (?P<pci>{BDF})(?: (?P<interface>[^\s:]+))?: .{{0,400}}?(?:{_ANY_MLX5})"
        r"(?:.{0,20}?module (?P<module>\d+), (?P<cable>[^\n]{1,80}))?",
    ),
    rule(
        RDMA,
        "failed with error",
        rf"mlx5_core(?:: probe of)? (?P<pci>{BDF})(?:: probe with driver \S{{1,32}})? failed with error",
    ),
    rule(
        LINK,
        "ink ",
        rf"\S+ (?P<pci>{BDF}) (?P<device>[^\s:]{{1,32}})(?: \([^)]*\))?: (?:\S{{1,32}}: )?"
        rf"(?:\S{{1,32}} )?(?:NIC )?[Ll]ink {_STATE}",
        codes=_UP_DOWN,
    ),
    rule(
        LINK,
        "NIC Link ",
        rf"\w+: (?P<device>[^\s:]{{1,32}}):? NIC Link {_STATE}",
        codes=_UP_DOWN,
    ),
    rule(
        LINK,
        "link status ",
        r"(?P<bond>\S{1,32}): \(slave (?P<device>[^\s)]{1,32})\): link status definitely "
        r"(?P<state>up|down)\b",
        codes=_UP_DOWN,
    ),
    rule(
        LINK,
        "link status ",
        r"(?:bonding: )?(?P<bond>[^\s:]{1,32}): link status definitely (?P<state>up|down) for "
        r"interface (?P<device>[^\s,]{1,32})",
        codes=_UP_DOWN,
    ),
)
