"""The demo's own story: seed, ask, scale, watch, ask again, compare."""

from __future__ import annotations

import json
import time
from typing import Any

import yaml

from demo.checks import Check, checks, token_differences
from demo.cluster import Cluster
from demo.live import NodeView, watching
from demo.report import Report
from demo.screen import Screen
from demo.settings import Settings
from demo.stages import Progress
from demo.timeline import replicas
from kit.agents import observed
from kit.engines import ENGINE_PORT, PROMPTS, TOKENS, Answer, ask
from kit.errors import DeadlineExceeded
from kit.eventually import NotYet, eventually

PLAIN = "plain-sglang"
PLAIN_NAMESPACE = "default"
DRAW_SECONDS = 0.3


def example(settings: Settings) -> dict[str, Any]:
    """The ModelReplica of the example's file."""
    documents = yaml.safe_load_all(settings.example.read_text())
    found: dict[str, Any] = next(document for document in documents if document["kind"] == "ModelReplica")
    return found


def plain_pod(settings: Settings) -> dict[str, Any]:
    """The example's own pod template as a pod of plain SGLang: same image, flags, checkpoint."""
    template = example(settings)["spec"]["template"]
    spec = template["spec"]
    spec.pop("topologySpreadConstraints", None)
    engine = spec["containers"][0]
    engine["args"] = [*engine["args"], "--load-format=auto"]
    engine["readinessProbe"] = {"httpGet": {"path": "/ready", "port": ENGINE_PORT}, "periodSeconds": 1}
    meta = {"name": PLAIN, "namespace": PLAIN_NAMESPACE, "labels": {"app": PLAIN}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**spec, "restartPolicy": "Never"}}


class Scenario:
    def __init__(self, settings: Settings, cluster: Cluster, progress: Progress) -> None:
        self.settings = settings
        self.kubectl = cluster.kubectl
        self.api = cluster.api
        self.progress = progress

    def run(self) -> list[Check]:
        """Everything after the installation; writes the report and gives the checks."""
        settings = self.settings
        with self.progress.stage("plain SGLang, for comparison") as stage:
            reference = self._ask_plain(stage.say)
        with self.progress.stage("kubectl apply") as stage:
            self.kubectl("apply", "-f", str(settings.example))
            stage.say(str(settings.example.name))
        with self.progress.stage("first replica seeds") as stage:
            self._until_ready(1, settings.engine_seconds, stage.say)
        with self.progress.stage("ask the seed") as stage:
            seed = self._ask_all()[0]
            stage.say(f"{len(PROMPTS)} prompts, {TOKENS} tokens each")
        with self.progress.stage(f"kubectl scale --replicas={settings.replicas}") as stage:
            kind = f"modelreplica/{settings.name}"
            self.kubectl("scale", kind, "-n", settings.namespace, f"--replicas={settings.replicas}")
        began = time.monotonic()
        views = self._follow()
        self.progress.record("all replicas Ready", time.monotonic() - began, f"{settings.replicas} replicas")
        with self.progress.stage("ask every replica") as stage:
            answers = self._ask_all()
            differences = token_differences(reference, seed, answers)
            stage.say("all equal" if not differences else f"{len(differences)} differences")
        lives = replicas(self._pods(), views)
        verdicts = checks(settings, lives, differences)
        memory = next(iter(observed(self.api).values())).memory.arena_pages
        Report(
            settings=settings,
            replicas=lives,
            checks=verdicts,
            tokens_equal=not differences,
            prompts=len(PROMPTS),
            tokens_each=TOKENS,
            stages=self.progress.stages,
            memory=memory,
        ).write(settings.out)
        return verdicts

    def _pods(self) -> list[dict[str, Any]]:
        selector = f"flashboot.io/model-replica={self.settings.name}"
        pods = self.api.items("pods", self.settings.namespace, labels=selector)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def _ask_all(self) -> list[Answer]:
        names = [pod["metadata"]["name"] for pod in self._pods()]
        return [ask(self.api, self.settings.namespace, name) for name in names]

    def _ask_plain(self, say: Any) -> Answer:
        """A plain engine's answers; the pod is gone afterwards."""
        namespace = PLAIN_NAMESPACE
        self.kubectl.apply(json.dumps(plain_pod(self.settings)))

        def ready() -> None:
            pod = self.api.get("pods", PLAIN, namespace)
            say(f"pod is {pod['status'].get('phase')}")
            if not is_ready(pod):
                raise NotYet(waits_for(pod))

        eventually(ready, f"pod {namespace}/{PLAIN} to be Ready", self.settings.engine_seconds, every=1)
        answer = ask(self.api, namespace, PLAIN)
        self.kubectl("delete", "pod", PLAIN, "-n", namespace, "--wait=true", seconds=60)
        return answer

    def _status(self) -> tuple[int, str]:
        """Ready replicas (0 unless all that are wanted are), and what the ModelReplica says it waits for."""
        mrep = self.api.get("modelreplicas", self.settings.name, self.settings.namespace)
        status = mrep.get("status", {})
        if status.get("observedGeneration") != mrep["metadata"]["generation"]:
            return 0, "the operator has not seen it yet"
        ready = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), None)
        if ready is None:
            return 0, "no condition Ready yet"
        if ready["status"] != "True":
            return 0, f"{ready['reason']}: {ready['message']}"
        return status.get("readyReplicas", 0), ready["message"]

    def _until_ready(self, count: int, seconds: float, say: Any) -> None:
        def probe() -> None:
            ready, message = self._status()
            say(message[:100])
            if ready < count:
                raise NotYet(message)

        what = f"ModelReplica {self.settings.namespace}/{self.settings.name} to have {count} ready replicas"
        eventually(probe, what, seconds, every=1)

    def _follow(self) -> list[NodeView]:
        """Draw the nodes until all replicas are ready; their last views."""
        settings = self.settings
        screen = Screen(self.progress.out)
        end = time.monotonic() + settings.scale_seconds
        asked = 0.0
        ready, message = 0, ""
        ready_pods: frozenset[str] = frozenset()
        with watching(self.api, settings.namespace, settings.name) as watch:
            while ready < settings.replicas:
                if time.monotonic() > end:
                    raise DeadlineExceeded(
                        f"waited {settings.scale_seconds:.0f} s for {settings.replicas} ready replicas of "
                        f"{settings.namespace}/{settings.name}; last: {message}"
                    )
                if time.monotonic() - asked > 1:
                    asked = time.monotonic()
                    ready, message = self._status()
                    ready_pods = frozenset(p["metadata"]["name"] for p in self._pods() if is_ready(p))
                screen.draw(watch.views(), ready_pods)
                time.sleep(DRAW_SECONDS)
            screen.draw(watch.views(), ready_pods)
            return watch.views()


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def waits_for(pod: dict[str, Any]) -> str:
    """What keeps a pod from being Ready, in the words of Kubernetes."""
    for status in pod["status"].get("containerStatuses", ()):
        for state in ("waiting", "terminated"):
            if state in status.get("state", {}):
                facts = status["state"][state]
                return f"container {status['name']} {state}: {facts.get('reason')} {facts.get('message', '')}".strip()
    for condition in pod["status"].get("conditions", ()):
        if condition["status"] != "True" and condition.get("message"):
            return str(condition["message"])
    return f"phase {pod['status'].get('phase')}"
