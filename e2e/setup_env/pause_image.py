"""The pause image, made by hand: one static program of ours in one layer, written as a `docker save` archive."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from setup_env.shell import run

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def build_pause_archive(source: Path, work: Path, name: str) -> Path:
    """Compile `source` and wrap it; the returned archive can be imported by containerd."""
    program, archive = work / "pause", work / "pause.tar"
    run(["gcc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", "-o", program, source])
    layer = _tar({"pause": program.read_bytes()}, mode=0o755)
    diff_id = "sha256:" + hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }
    ).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    archive.write_bytes(_tar({config_name: config, "manifest.json": manifest, "layer.tar": layer}, mode=0o644))
    return archive


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
