"""The images on the rack, and the seed store that holds them unpacked.

    docker.io/library/python:3.11-slim-bookworm   base_image.py
    docker.io/flashboot/{operator,agent}:dev      the users' Dockerfile, unchanged
    docker.io/flashboot/engine-cpu:dev            SGLang on a CPU (e2e/images/engine-cpu.Dockerfile)
    docker.io/flashboot/pause:dev                 holds a pod's namespaces

The store is one cache entry, keyed by everything that goes into the images; layers that did not change come from the
builder's storage.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from setup_env import base_image, python_envs
from setup_env.buildah import Builder
from setup_env.cache import LOG, Cache, Material, key_of
from setup_env.paths import REPO, REQUIREMENTS
from setup_env.pause_image import build_pause_archive
from setup_env.progress import stage
from setup_env.seed_store import import_images, layer_with
from setup_env.system import RACK_NEEDS, ensure_packages

TAGS = {part: f"docker.io/flashboot/{part}:dev" for part in ("operator", "agent", "engine-cpu", "pause")}
_RECIPES = REPO / "e2e" / "images"
_CONTEXT = ("Dockerfile", "pyproject.toml", "README.md", "LICENSE", "csrc", "operator", "agent")
_PINS = ("build.txt", "operator.txt", "agent.txt")
_IGNORED = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc")
_ENGINE_DIR = "opt/engine"
_MARKER = f"{_ENGINE_DIR}/.marker"


def ensure_store(cache: Cache) -> Path:
    """The seed store with all images; a change of code alone takes about a minute."""
    engine = python_envs.ensure_engine(cache).parents[1]
    rootfs = base_image.ensure(cache)
    with tempfile.TemporaryDirectory(prefix="fb-context-") as scratch:
        # Key and images come from the same copy: the sources may change while we build.
        context = _copy_context(Path(scratch, "context"))

        def build(into: Path) -> None:
            ensure_packages(RACK_NEEDS)
            work = into / "work"
            work.mkdir()
            with _only_one_builder(cache):
                builder = Builder(cache.root / "image-layers", into / LOG)
                archives = _build_images(builder, rootfs, context, engine.name, work)
            with stage("unpacking images into the seed store"):
                import_images(into / "store", archives, into / LOG)
                _link_engine(engine, layer_with(into / "store", _MARKER))
            shutil.rmtree(work)

        material: list[Material] = [context, _RECIPES, str(engine), str(rootfs)]
        return cache.entry("store", material, build, keep=2) / "store"


def _build_images(builder: Builder, rootfs: Path, context: Path, engine_name: str, work: Path) -> list[Path]:
    """Write one archive per image into `work`."""
    dockerfile = context / "Dockerfile"
    with builder.session():
        # Named by its content too: the plain name says nothing about which rootfs it was made from.
        stamped = f"localhost/flashboot-base:{key_of([rootfs.parent.name, _RECIPES / 'base.Dockerfile'])}"
        if not builder.exists(stamped):
            builder.build(_RECIPES / "base.Dockerfile", rootfs.parent, stamped)
        builder.tag(stamped, base_image.BASE_NAME)
        for part in ("operator", "agent"):
            builder.build(dockerfile, context, TAGS[part], target=part)
        engine_context = work / "engine"
        engine_context.mkdir()
        builder.export(dockerfile, context, "dist", engine_context / "wheels")
        (engine_context / "engine-marker").write_text(engine_name + "\n")
        shutil.copytree(_RECIPES / "startup", engine_context / "startup", ignore=_IGNORED)
        builder.build(_RECIPES / "engine-cpu.Dockerfile", engine_context, TAGS["engine-cpu"])
        archives = [build_pause_archive(_RECIPES / "pause.c", work, TAGS["pause"])]
        with stage("writing image archives"):
            for part in ("operator", "agent", "engine-cpu"):
                archives.append(work / f"{part}.tar")
                builder.save(TAGS[part], archives[-1])
    return archives


def _copy_context(into: Path) -> Path:
    """The Dockerfile and what .dockerignore lets through."""
    (into / "requirements").mkdir(parents=True)
    for name in _CONTEXT:
        source = REPO / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=_IGNORED)
        else:
            shutil.copy2(source, into / name)
    for pins in _PINS:
        shutil.copy2(REQUIREMENTS / pins, into / "requirements" / pins)
    return into


def _link_engine(engine: Path, layer: Path) -> None:
    """Hard-link the engine environment into an unpacked layer, and point it at the image's own interpreter."""
    target = layer / _ENGINE_DIR
    subprocess.run(["cp", "-al", f"{engine}/.", str(target)], check=True)
    # These two differ from the cached environment, so they must be files of their own.
    (target / "pyvenv.cfg").unlink()
    (target / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n")
    for name in ("python", "python3", "python3.11"):
        (target / "bin" / name).unlink(missing_ok=True)
        (target / "bin" / name).symlink_to("/usr/bin/python3.11" if name == "python" else "python")


@contextmanager
def _only_one_builder(cache: Cache) -> Iterator[None]:
    """The builder's storage is shared by entries of different keys, whose own locks do not exclude each other."""
    fd = os.open(cache.root / "image-layers.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
