"""`flashboot doctor`: each check with what it should find and what it should not, and how it is told."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flashboot_agent.core.errors import BadRequest, CheckpointMissing
from flashboot_agent.engine.doctor import command, examine, findings, image, pod
from flashboot_agent.engine.doctor.findings import Check, Finding, Odd
from flashboot_agent.memory.probe import HostFacts
from flashboot_agent.version import own_version
from flashboot_agent.wire.attach import Agent, Ask, from_engine
from flashboot_operator.cli.main import main

ROOT = Path(__file__).parents[2]
OURS = ["--load-format", "private", "--model-loader-extra-config", '{"flashboot": {"model": "m", "revision": "r"}}']


def looked(look: Callable[[], object]) -> Finding:
    return findings.run(Check("it", look, "do this"))  # type: ignore[arg-type]


# Telling ---------------------------------------------------------------------------------------------------------


def test_a_check_is_ok_when_it_returns_and_wrong_whatever_it_raises() -> None:
    def raises(error: BaseException) -> Callable[[], str]:
        def look() -> str:
            raise error

        return look

    assert looked(lambda: "5") == Finding("it", "ok", "5")
    assert looked(lambda: ("5", {"a": "b"})) == Finding("it", "ok", "5", details={"a": "b"})
    assert looked(raises(ImportError("no x"))) == Finding("it", "wrong", "ImportError: no x", "do this")
    assert looked(raises(SystemExit(2))) == Finding("it", "wrong", "SystemExit: 2", "do this")
    assert looked(raises(Odd("note", "slow", "or that"))) == Finding("it", "note", "slow", "or that")
    assert looked(raises(Odd("wrong", "no"))) == Finding("it", "wrong", "no", "do this")
    assert looked(raises(Odd("skipped", "nothing there"))) == Finding("it", "skipped", "nothing there")


def test_the_table_has_a_line_per_check_and_the_advice_below() -> None:
    found = [
        Finding("sglang", "ok", "0.5.23"),
        Finding("agent", "wrong", "nobody\nis there", "start it"),
        Finding("long", "note", "word " * 40),
    ]
    lines = findings.table(found).splitlines()
    assert lines[:4] == [
        "ok      sglang  0.5.23",
        "wrong   agent   nobody",
        "                is there",
        "              → start it",
    ]
    assert max(map(len, lines)) <= findings.WIDTH
    assert not findings.healthy(found)
    assert findings.healthy([found[0], found[2]])
    assert findings.document(found[:1]) == {
        "ok": True,
        "checks": [{"check": "sglang", "state": "ok", "found": "0.5.23", "advice": "", "details": {}}],
    }


# The pod ---------------------------------------------------------------------------------------------------------


def mounts(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines))
    return file


def test_the_mount_must_be_there_and_read_only(tmp_path: Path) -> None:
    path = f"{tmp_path}/agent.sock"
    line = f"36 35 98:0 /pods/u {tmp_path} {{}} - tmpfs tmpfs rw"
    good = mounts(tmp_path, "1 0 0:1 / / rw - x y rw", line.format("ro,nosuid"))
    assert pod.mount(path, good) == f"{tmp_path}, read-only"
    with pytest.raises(Odd, match="is mounted writable") as odd:
        pod.mount(path, mounts(tmp_path, line.format("rw,nosuid")))
    assert odd.value.state == "note"
    with pytest.raises(Odd, match="no mount") as odd:
        pod.mount(path, mounts(tmp_path))
    assert odd.value.state == "note", "another place than a pod's is somebody's own choice"
    with pytest.raises(Odd, match="is not there") as odd:
        pod.mount("/no/such/agent.sock", mounts(tmp_path))
    assert odd.value.state == "wrong"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def answering(path: Path) -> Iterator[Callable[[bytes], list[object]]]:
    """A socket that gives one packet to whoever asks, and keeps what it was asked."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as server:
        server.bind(str(path))
        server.listen()
        threads: list[threading.Thread] = []

        def answering(packet: bytes) -> list[object]:
            asked: list[object] = []

            def serve() -> None:
                connection, _ = server.accept()
                with connection:
                    asked.append(from_engine.validate_json(connection.recv(65536)))
                    connection.send(packet)

            threads.append(threading.Thread(target=serve))
            threads[-1].start()
            return asked

        yield answering
        for thread in threads:
            thread.join(10)


def test_the_agent_is_asked_who_it_is_without_a_hello(answering: Callable[[bytes], list[object]], path: Path) -> None:
    asked = answering(Agent(node="n1", version=own_version()).to_json())
    assert pod.socket(str(path)) == str(path)
    assert pod.agent(str(path)) == f"node n1, version {own_version()}, protocol 1"
    assert asked == [Ask()]


@pytest.mark.parametrize(
    ("packet", "state", "says"),
    [
        (Agent(node="n1", version="0.0.9").to_json(), "note", "version 0.0.9"),
        (b'{"type": "agent", "protocol": 2, "node": "n1", "version": "9"}', "wrong", "another protocol"),
        (b'{"type": "refused", "problem": {"reason": "BadRequest", "message": "?"}}', "wrong", "1 is not spoken"),
        (b"junk", "wrong", "another protocol"),
    ],
)
def test_an_agent_of_another_kind(
    answering: Callable[[bytes], list[object]], path: Path, packet: bytes, state: str, says: str
) -> None:
    answering(packet)
    with pytest.raises(Odd, match=says) as odd:
        pod.agent(str(path))
    assert odd.value.state == state


def test_a_socket_that_nobody_serves(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Odd, match="is no socket"):
        pod.socket(str(tmp_path / "file"))
    for name, error in (("file", "ConnectionRefused"), ("none", "FileNotFound")):
        found = looked(lambda name=name: pod.agent(str(tmp_path / name)))  # type: ignore[misc]
        assert (found.state, found.advice) == ("wrong", "do this")
        assert found.found.startswith(error)


def test_small_pages_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = HostFacts(4096, "never", 0, 0, 2 << 20)
    monkeypatch.setattr(pod, "probe", lambda: facts)
    with pytest.raises(Odd, match="4 KiB pages: shmem_enabled is never") as odd:
        pod.memory()
    assert (odd.value.state, "shmem_enabled to advise" in odd.value.advice) == ("note", True)
    monkeypatch.setattr(pod, "probe", lambda: HostFacts(4096, "advise", 0, 0, 2 << 20))
    assert "transparent huge pages" in pod.memory()


# The command line ------------------------------------------------------------------------------------------------


def test_flags_must_be_complete() -> None:
    assert command.flags(OURS) == "model m, revision r"
    for arguments, says in (
        (["--model-path", "/m"], "has no key flashboot"),
        (OURS[2:], "--load-format auto, not private"),
    ):
        with pytest.raises(Odd, match=says) as odd:
            command.flags(arguments)
        assert odd.value.state == "wrong"
    with pytest.raises(BadRequest, match=r"flashboot\.revision"):
        command.flags([*OURS[:3], '{"flashboot": {"model": "m"}}'])
    for check in (command.flags, command.model, command.identity):
        with pytest.raises(Odd, match="give the engine's arguments") as odd:
            check([])
        assert odd.value.state == "skipped"


def test_the_model_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(Odd, match="no --model-path"):
        command.model(OURS)
    with pytest.raises(Odd, match="no local folder") as odd:
        command.model([*OURS, "--model-path", "org/name"])
    assert odd.value.state == "note"
    with pytest.raises(CheckpointMissing):
        command.model([*OURS, "--model-path", str(tmp_path)])
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert command.model([*OURS, "--model-path", str(tmp_path)]) == str(tmp_path)


def test_the_socket_comes_from_the_arguments_unless_they_are_wrong() -> None:
    assert command.socket_of([]) is None
    assert command.socket_of(OURS) == "/flashboot/agent.sock"
    assert command.socket_of([*OURS[:3], '{"flashboot": {"model": "m", "revision": "r", "socket": "/s"}}']) == "/s"
    assert command.socket_of([*OURS[:3], '{"flashboot": 1}']) is None


# The image (what needs SGLang and torch is in tests/engine/test_doctor.py) -----------------------------------------


def test_the_entry_point_must_be_ours_and_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        value = image.REGISTER

        def load(self) -> object:
            return None

    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    monkeypatch.setattr(image, "entry_points", lambda **_: [Point()])
    assert image.REGISTER in image.plug_in()
    monkeypatch.setenv("SGLANG_PLUGINS", "other, flashboot")
    assert image.plug_in()
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    with pytest.raises(Odd, match="SGLANG_PLUGINS=other leaves flashboot out"):
        image.plug_in()
    monkeypatch.setattr(image, "entry_points", lambda **_: [])
    with pytest.raises(Odd, match=r"\[\], not flashboot_agent"):
        image.plug_in()


def test_another_sglang_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "version", lambda name: "0.6.0")
    found = looked(image.sglang)
    assert found.state == "wrong"
    assert "works with SGLang 0.5.23 and found 0.6.0" in found.found


def test_where_there_is_no_sglang_all_checks_still_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "-o", "json", "--socket", str(tmp_path / "none"), "--", *OURS]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    states = {check["check"]: check["state"] for check in said["checks"]}
    assert states["sglang"] == states["hooks"] == states["socket"] == states["agent"] == states["identity"] == "wrong"
    assert states["native"] == states["flags"] == "ok"
    assert [each.check for each in examine([], socket=None, in_pod=False)] == [
        *(check.name for check in image.CHECKS),
        *("flags", "model", "identity"),
    ]
    assert main(["doctor", "--image"]) == 1
    assert "wrong   sglang" in capsys.readouterr().out


def test_the_program_runs_where_nothing_of_the_operator_is_installed() -> None:
    code = (
        "import sys\n"
        "for name in ('kopf', 'kubernetes', 'httpx', 'aiohttp', 'cryptography', 'yaml'): sys.modules[name] = None\n"
        "from flashboot_operator.cli.main import main\n"
        "sys.exit(main(['doctor', '--image']))"
    )
    env = {"PYTHONPATH": f"{ROOT / 'agent'}:{ROOT / 'operator'}"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "wrong   sglang" in done.stdout
