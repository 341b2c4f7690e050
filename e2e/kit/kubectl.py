"""kubectl, as a person would type it, with a deadline on every call and errors that carry what it said."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit.errors import CommandFailed


def run(
    command: Sequence[str], *, stdin: str | None = None, seconds: float = 60, env: dict[str, str] | None = None
) -> str:
    """Standard output of a command that ends with status 0 within `seconds`. Raises CommandFailed."""
    shown = " ".join([Path(command[0]).name, *command[1:]])
    try:
        done = subprocess.run(
            list(command),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except subprocess.TimeoutExpired as late:
        said = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else (late.stderr or "")
        raise CommandFailed(shown, None, said) from late
    if done.returncode:
        raise CommandFailed(shown, done.returncode, done.stderr)
    return done.stdout


class Kubectl:
    """One cluster. `namespace` is given per call, so that every line of a test says where it acts."""

    def __init__(self, binary: Path, kubeconfig: Path) -> None:
        self.binary = binary
        self.kubeconfig = kubeconfig

    def __call__(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        return run([str(self.binary), f"--kubeconfig={self.kubeconfig}", *arguments], stdin=stdin, seconds=seconds)

    def json(self, *arguments: str, seconds: float = 60) -> Any:
        """`kubectl … -o json`, parsed."""
        return json.loads(self(*arguments, "-o", "json", seconds=seconds))

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """The items of `kubectl get … -o json`."""
        found: list[dict[str, Any]] = self.json("get", *arguments)["items"]
        return found

    def apply(self, document: str) -> None:
        """Apply YAML or JSON text."""
        self("apply", "-f", "-", stdin=document)

    def refusal(self, document: str) -> str:
        """What the API server says when it refuses this document. Raises AssertionError if it accepts it."""
        try:
            self.apply(document)
        except CommandFailed as refused:
            return refused.stderr
        raise AssertionError(f"the API server accepted:\n{document}")

    @contextmanager
    def namespace(self, name: str, **labels: str) -> Iterator[str]:
        """A namespace that is there inside the block and gone after it."""
        meta = {"name": name, "labels": labels}
        self.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}))
        try:
            yield name
        finally:
            self("delete", "namespace", name, "--wait=true", "--ignore-not-found", seconds=120)
