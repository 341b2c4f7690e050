"""How fast this node's way to other nodes is, as its network device says."""

from __future__ import annotations

from pathlib import Path


def link_speed(root: Path = Path("/")) -> int | None:
    """Bytes a second of the device that has the default route; None where nobody says.

    Only of hardware: a veth, which is what most pods have, always claims 10 Gbit/s, whatever the link behind it is."""
    device = _default_device(root)
    if device is None or not (root / "sys/class/net" / device / "device").exists():
        return None
    try:
        text = (root / "sys/class/net" / device / "speed").read_text().strip()
    except OSError:  # EINVAL while the link is down, and of devices without a speed
        return None
    return int(text) * 125_000 if text.isdigit() and int(text) > 0 else None


def _default_device(root: Path) -> str | None:
    try:
        lines = (root / "proc/net/route").read_text().splitlines()[1:]
    except OSError:
        return None
    routes = [line.split() for line in lines]
    return next((fields[0] for fields in routes if len(fields) > 7 and fields[1] == fields[7] == "00000000"), None)
