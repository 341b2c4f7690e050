"""Kubernetes, etcd, helm and metrics-server, built from their Go modules at the versions that go.mod and go.sum pin.

Building from source needs nothing but a Go proxy; the checksums in go.sum say that it is what upstream published.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from setup_env.cache import LOG, Cache, Material
from setup_env.paths import CONTROLPLANE
from setup_env.shell import run
from setup_env.system import require_go

_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy")


@dataclass(frozen=True)
class _Module:
    folder: str
    packages: dict[str, str]  # program → Go package
    stamp_version: bool = False  # Kubernetes refuses skewed versions, so its programs must know their own


_MODULES = (
    _Module("kubernetes", {p: f"k8s.io/kubernetes/cmd/{p}" for p in _KUBERNETES}, stamp_version=True),
    _Module("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    _Module("helm", {"helm": "helm.sh/helm/v3/cmd/helm"}),
    _Module("metrics-server", {"metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server"}),
)


@dataclass(frozen=True)
class ControlPlane:
    """Where each program is."""

    programs: dict[str, Path]

    def __getitem__(self, program: str) -> Path:
        return self.programs[program]


def ensure(cache: Cache) -> ControlPlane:
    """Build what is missing (some 20 minutes on two cores when nothing is there) and name the programs."""
    programs: dict[str, Path] = {}
    for module in _MODULES:
        entry = _ensure_module(cache, module)
        programs |= {name: entry / name for name in module.packages}
    return ControlPlane(programs)


def _ensure_module(cache: Cache, module: _Module) -> Path:
    folder = CONTROLPLANE / module.folder
    ldflags = _ldflags(folder, stamp_version=module.stamp_version)

    def build(into: Path) -> None:
        go = require_go()
        env = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
        common = [go, "build", "-mod=readonly", "-trimpath", "-ldflags", ldflags]
        log = into / LOG
        for name, package in module.packages.items():  # one by one: a name of our choice, and progress in the log
            run([*common, "-o", into / name, package], cwd=folder, env=env, log=log)

    material: list[Material] = [folder / "go.mod", folder / "go.sum", ldflags, *module.packages.values()]
    return cache.entry(f"controlplane-{module.folder}", material, build)


def _ldflags(folder: Path, *, stamp_version: bool) -> str:
    flags = "-s -w"
    if not stamp_version:
        return flags
    found = re.search(r"^require k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)", (folder / "go.mod").read_text(), re.M)
    if found is None:
        raise ValueError(f"{folder}/go.mod does not require k8s.io/kubernetes")
    version, major, minor = found.groups()
    base = "k8s.io/component-base/version"
    return (
        f"{flags} -X {base}.gitVersion={version} -X {base}.gitMajor={major} -X {base}.gitMinor={minor}"
        f" -X k8s.io/client-go/pkg/version.gitVersion={version}"
    )
