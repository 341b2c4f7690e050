"""A containerd store made once, with every image imported and unpacked; the rack's nodes share it read-only.

A node copies the two databases (a few hundred KiB) and mounts the contents and the unpacked layers from here, so that
four nodes cost neither the time nor the memory of four imports. The databases name no paths, so the store can be moved.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setup_env.errors import SetupError
from setup_env.shell import run

SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
_START_DEADLINE_S = 20.0


def import_images(store: Path, archives: list[Path], log: Path) -> None:
    """Import `docker save` archives into the store folder (made when it is not there)."""
    with _containerd(store, log) as socket:
        for archive in archives:
            run(["ctr", "-a", socket, "-n", "k8s.io", "images", "import", archive], log=log, timeout_s=900)


def layer_with(store: Path, marker: str) -> Path:
    """The unpacked layer that brings the file `marker` (a path in the image)."""
    found = [s / "fs" for s in (store / SNAPSHOTS).iterdir() if (s / "fs" / marker.lstrip("/")).exists()]
    if len(found) != 1:
        raise SetupError(f"{len(found)} layers of the seed store hold {marker}, expected one")
    return found[0]


@contextmanager
def _containerd(store: Path, log: Path) -> Iterator[str]:
    """A containerd on a private socket for as long as the context lasts; it dies with us, whatever happens."""
    store.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fb-seed-") as state:  # short: a socket's path has 107 bytes
        socket = f"{state}/s"
        config = Path(state, "config.toml")
        config.write_text(
            f'version = 2\nroot = "{store}"\nstate = "{state}/state"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{socket}"\n'
        )
        with log.open("ab") as sink:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "containerd", "-c", str(config)], stdout=sink, stderr=sink
            )
        try:
            _wait_until_up(socket, process, log)
            yield socket
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    for leftover in store.iterdir():  # empty folders of plug-ins that no node wants
        if leftover.is_dir() and not any(leftover.iterdir()):
            leftover.rmdir()
    _remove_if_there(store / "tmpmounts")


def _wait_until_up(socket: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_DEADLINE_S
    while subprocess.run(["ctr", "-a", socket, "version"], capture_output=True, check=False).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SetupError(f"containerd for the seed store does not start; see {log}\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _remove_if_there(path: Path) -> None:
    if path.is_dir() and not os.listdir(path):
        shutil.rmtree(path)
