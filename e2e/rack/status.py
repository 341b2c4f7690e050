"""What `rack status` prints: nodes, and processes with their share of memory."""

from pathlib import Path

from rack import cgroups, cluster, lock, teardown


def describe() -> str:
    """A few lines for people."""
    owner = lock.owner()
    if not cgroups.pids():
        left = teardown.leftovers() if owner else []
        return "no rack is up" + ("\nleft of one (make rack-down removes it):\n  " + "\n  ".join(left) if left else "")
    lines = [f"rack of {owner}"]
    if cluster.is_up():
        lines.append(cluster.kubectl("get", "nodes", "-o", "wide", check=False).rstrip())
    shares: dict[str, tuple[int, int]] = {}
    for pid in cgroups.pids():
        name, kib = _share(pid)
        count, total = shares.get(name, (0, 0))
        shares[name] = count + 1, total + kib
    for name, (count, kib) in sorted(shares.items(), key=lambda item: -item[1][1]):
        lines.append(f"{name:24} {count:3} processes {kib / 1024:8.1f} MiB")
    lines.append(f"{'all':24} {'':13} {sum(kib for _, kib in shares.values()) / 1024:8.1f} MiB")
    return "\n".join(lines)


def _share(pid: int) -> tuple[str, int]:
    """Name and proportional share (KiB) of a process; shared pages are counted once over all."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it ended meanwhile
        return "ended", 0
    return name, next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
