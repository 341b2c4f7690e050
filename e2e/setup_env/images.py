"""stage 1"""

from pathlib import Path

from setup_env.cache import Cache
from setup_env.paths import REPO
from setup_env.pause_image import build_pause_archive
from setup_env.seed_store import import_images

PAUSE_SOURCE = REPO / "e2e" / "images" / "pause.c"
PAUSE_NAME = "docker.io/flashboot/pause:dev"


def ensure_store(cache: Cache) -> Path:
    def build(into: Path) -> None:
        work = into / "work"
        work.mkdir()
        archive = build_pause_archive(PAUSE_SOURCE, work, PAUSE_NAME)
        import_images(into / "store", [archive], into / "build.log")

    return cache.entry("store", [PAUSE_SOURCE], build, keep=2) / "store"
