"""`flashboot status` and `tree`: as a user with a kubeconfig, through the API server's proxy, and what goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashboot_operator.api.live import Document, Edge, LaneTree, Refusal
from flashboot_operator.cli.main import main
from flashboot_operator.cli.tree import forest
from flashboot_operator.core.plan import Decision
from flashboot_operator.core.trees import trees_of
from flashboot_operator.reconcile.view import listing, view
from tests.unit.operatorkit import owner
from tests.unit.test_operator_trees import a_chain

Capture = pytest.CaptureFixture[str]
PROXY = "/api/v1/namespaces/flashboot-system/services/http:flashboot-operator:9442/proxy"
STATUS: dict[str, Any] = {
    "readyReplicas": 1,
    "replicas": 3,
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "Cloning",
            "message": "pod b: rank tp0 on n2 at 50 % from n1",
            "lastTransitionTime": "2026-03-01T11:59:00Z",
        }
    ],
    "domains": [{"name": "rack1", "residentReplicas": 1, "source": "a", "sourceReason": "OnlySealed"}],
    "lastClone": {
        "replicas": 2,
        "path": "tcp",
        "bytes": 8 << 20,
        "cloneMilliseconds": 1500,
        "apiReadyMilliseconds": 9000,
        "completedAt": "2026-03-01T11:00:00Z",
    },
}


@dataclass
class Api:
    """An API server that knows one path each, and whoever shows the right token."""

    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, document: Document | dict[str, Any], status: int = 200) -> None:
        body = document.to_json() if isinstance(document, Document) else json.dumps(document).encode()
        self.answers[path] = (status, body)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    made = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            missing = (
                404,
                json.dumps({"kind": "Status", "reason": "NotFound", "message": 'services "x" not found'}).encode(),
            )
            status, body = made.answers.get(self.path, missing)
            if self.headers["Authorization"] != "Bearer me":
                status, body = 401, b'{"kind": "Status", "reason": "Unauthorized", "message": "Unauthorized"}'
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "one",
                "clusters": [{"name": "c", "cluster": {"server": made.url}}],
                "users": [{"name": "me", "user": {"token": "me"}}, {"name": "other", "user": {"token": "other"}}],
                "contexts": [
                    {"name": "one", "context": {"cluster": "c", "user": "me", "namespace": "ns"}},
                    {"name": "stranger", "context": {"cluster": "c", "user": "other"}},
                ],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    for name in ("FLASHBOOT_NAMESPACE", "FLASHBOOT_OPERATOR_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


def three(names: str) -> Any:
    return {("ns", name): (owner(replicas=3), STATUS) for name in names}


def test_status_lists_the_contexts_namespace_page_by_page(api: Api, capsys: Capture) -> None:
    first = listing(three("ab"), namespace="ns", after=None, limit=1)
    assert first.after is not None
    api.answer(f"{PROXY}/v1/modelreplicas?namespace=ns", first)
    second = listing(three("ab"), namespace="ns", after=first.after, limit=1)
    api.answer(f"{PROXY}/v1/modelreplicas?namespace=ns&after=ns/a", second)
    assert main(["status"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "MODEL", "DESIRED", "READY", "STATE", "SOURCE", "DOMAIN", "SINCE"]
    assert [row.split()[:6] for row in rows] == [["m", "org/m", "3", "1", "Cloning", "a"]] * 2
    assert len(api.asked) == 2


def test_status_of_all_namespaces_and_of_none(api: Api, capsys: Capture) -> None:
    api.answer(f"{PROXY}/v1/modelreplicas", listing(three("a"), namespace=None, after=None, limit=9))
    assert main(["status", "-A", "-o", "yaml"]) == 0
    assert [item["namespace"] for item in yaml.safe_load(capsys.readouterr().out)["items"]] == ["ns"]
    api.answer(f"{PROXY}/v1/modelreplicas?namespace=none", listing({}, namespace="none", after=None, limit=9))
    assert main(["status", "-n", "none"]) == 0
    assert capsys.readouterr().out == "no ModelReplicas in namespace none\n"
    assert main(["status", "-A", "m"]) == 2
    assert "-A lists all namespaces" in capsys.readouterr().err


def test_status_of_one_says_everything(api: Api, capsys: Capture) -> None:
    _, plans, there = a_chain()
    one = view(
        Decision(owner(replicas=3), there, plans, 1), agents=there.agents, silent={"n3": 12.0}, status=STATUS, epoch=1
    )
    api.answer(f"{PROXY}/v1/modelreplicas/ns/m", one)
    assert main(["status", "m"]) == 0
    said = capsys.readouterr().out
    for words in (
        "replicas   3 wanted, 3 there, 1 ready",
        "Cloning",
        "pod b: rank tp0 on n2 at 50 % from n1",
        "last clone   2 replicas, 8 MiB each over tcp, 1.5 s for the bytes, 9.0 s until the API was ready",
        "agents that do not answer: n3 (12 s)",
    ):
        assert words in said
    assert main(["status", "m", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"][0]["source"] == "n1"


def test_tree_draws_the_chain(api: Api, capsys: Capture) -> None:
    _, plans, there = a_chain()
    api.answer(f"{PROXY}/v1/modelreplicas/other/m/trees", trees_of(owner(replicas=3), there, plans, epoch=1))
    assert main(["tree", "m", "-n", "other"]) == 0
    said = capsys.readouterr().out
    assert "rank tp0   8 MiB   from n1 (OnlySealed, default)" in said
    assert "n1 → n2 (50 %" in said
    assert "tcp: no fabric" in said
    assert "n3 left it: no answer within 3 s" in said
    api.answer(f"{PROXY}/v1/modelreplicas/ns/m/trees?rank=tp9", trees_of(owner(), there, plans, epoch=1, rank="tp9"))
    assert main(["tree", "m", "--rank", "tp9"]) == 2
    assert "m has no arena of such a rank" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "document", "words"),
    [
        (403, {"reason": "Forbidden", "message": "no"}, "the verb get on services/proxy"),
        (503, {"reason": "ServiceUnavailable", "message": "no endpoints"}, "kubectl -n flashboot-system get pods"),
        (404, {"reason": "NotFound", "message": "services not found"}, "See --system-namespace"),
        (404, {"reason": "NotFound", "message": "no ModelReplica ns/m is known to this operator"}, "kubectl get mrep"),
        (200, {"something": "else"}, "is it of another version?"),
        (413, {"reason": "TooLarge", "message": "ask for less: ?rank= of trees"}, "ask for less"),
    ],
)
def test_what_goes_wrong_is_told_with_what_to_do(
    api: Api, capsys: Capture, status: int, document: dict[str, Any], words: str
) -> None:
    api.answer(f"{PROXY}/v1/modelreplicas/ns/m", document, status)
    assert main(["status", "m"]) == 1
    assert words in capsys.readouterr().err


def test_the_users_own_credentials_are_shown(api: Api, capsys: Capture) -> None:
    assert main(["status", "--context", "stranger"]) == 1
    assert "the API server does not know you" in capsys.readouterr().err
    assert main(["status", "--context", "nobody"]) == 1
    assert "no cluster to ask" in capsys.readouterr().err


def test_another_namespace_and_a_shorter_way(api: Api, capsys: Capture) -> None:
    assert main(["status", "--operator-url", api.url]) == 1
    assert "does not know you" in capsys.readouterr().err, "no token of the kubeconfig is shown there"
    assert api.asked == ["/v1/modelreplicas?namespace=default"]
    assert main(["status", "--operator-url", "operator:9442"]) == 2
    assert "write it like http://127.0.0.1:9442" in capsys.readouterr().err


def test_circles_in_what_nodes_say_do_not_hang_the_drawing() -> None:
    def edge(parent: str | None) -> Edge:
        return Edge(parent=parent, watermark=0)

    lane = LaneTree(bytes=1, edges={"a": edge("b"), "b": edge("a"), "c": edge("s"), "d": edge(None), "e": edge("e")})
    assert forest(lane) == ({"a": "b", "c": "s"}, ["b", "s"])


def test_refusals_and_pages_of_the_api() -> None:
    assert json.loads(Refusal(reason="NotFound", message="m").to_json()) == {"reason": "NotFound", "message": "m"}
    assert listing(three("abc"), namespace="x", after=None, limit=9).items == []
    assert listing(three("abc"), namespace=None, after="ns/b", limit=9).after is None
