"""How a command reaches the operator: as the user, through the API server's proxy to the operator's Service.

No port is forwarded and nobody gets new credentials: who may `get` the subresource `services/proxy` of the Service may
ask. `--operator-url` is for where there is a shorter way, such as inside the operator's own pod.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import quote, urlsplit

import typer
from pydantic import ValidationError

from flashboot_operator.api.live import Document
from flashboot_operator.cli.errors import CannotDo

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

    from flashboot_operator.kube.client import KubeError

SERVICE = "http:flashboot-operator:9442"
DEADLINE_S = 20.0
D = TypeVar("D", bound=Document)

NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NS", help="of the ModelReplica (default: the context's)")
]
KubeconfigOption = Annotated[
    str | None, typer.Option("--kubeconfig", metavar="FILE", help="default: KUBECONFIG, then ~/.kube/config")
]
ContextOption = Annotated[str | None, typer.Option("--context", metavar="NAME", help="of the kubeconfig")]
SystemOption = Annotated[
    str,
    typer.Option("--system-namespace", metavar="NS", envvar="FLASHBOOT_NAMESPACE", help="where the operator runs"),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--operator-url", metavar="URL", envvar="FLASHBOOT_OPERATOR_URL", help="ask there, not by the proxy"),
]


@dataclass(frozen=True)
class Reach:
    kubeconfig: str | None = None
    context: str | None = None
    system: str = "flashboot-system"
    url: str | None = None

    def namespace(self) -> str:
        """Of the context, as kubectl takes it."""
        if self.url is not None:
            return "default"
        try:
            from kubernetes.aio.config import ConfigException, list_kube_config_contexts

            contexts, active = list_kube_config_contexts(config_file=self._file())
        except ImportError as missing:
            raise _not_installed(missing) from missing
        except (ConfigException, OSError):
            return "default"  # inside a cluster there is no kubeconfig; whether we may ask shows when we do
        wanted = [c for c in contexts if c["name"] == self.context] if self.context else [active]
        return str((wanted[0] if wanted else {}).get("context", {}).get("namespace") or "default")

    def ask(self, model: type[D], path: str, query: Mapping[str, str] | None = None) -> D:
        """Raises CannotDo."""
        return asyncio.run(self._ask(model, path, query or {}))

    def _file(self) -> str | None:
        return self.kubeconfig or os.environ.get("KUBECONFIG")

    async def _ask(self, model: type[D], path: str, query: Mapping[str, str]) -> D:
        try:
            from flashboot_operator.kube.client import Kube, KubeError
        except ImportError as missing:
            raise _not_installed(missing) from missing
        prefix = f"/api/v1/namespaces/{self.system}/services/{SERVICE}/proxy" if self.url is None else ""
        kube = Kube(await self._configuration(), timeout_s=DEADLINE_S)
        try:
            found = await kube.get(prefix + quote(path), **query)
        except KubeError as error:
            raise CannotDo(self._why(error)) from error
        finally:
            await kube.close()
        try:
            return model.model_validate(found)
        except ValidationError as error:
            raise CannotDo(f"the operator's answer is not understood; is it of another version? {error}") from error

    async def _configuration(self) -> Configuration:
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.config import ConfigException

        from flashboot_operator.kube.client import load_configuration

        if self.url is not None:
            if urlsplit(self.url).scheme not in ("http", "https"):
                raise ValueError(f"--operator-url {self.url}: write it like http://127.0.0.1:9442")
            return Configuration(host=self.url.rstrip("/"))
        try:
            return await load_configuration(self._file() or _default_file(), context=self.context)
        except (ConfigException, OSError) as error:
            raise CannotDo(f"no cluster to ask: {error}; set KUBECONFIG or --kubeconfig") from error

    def _why(self, error: KubeError) -> str:
        where = f"Service flashboot-operator in namespace {self.system}"
        if error.message.startswith("no ModelReplica "):
            return f"{error.message}; `kubectl get mrep -A` shows those that there are"
        if error.status == 401:
            return f"the API server does not know you: {error.message}"
        if error.status == 403:
            return (
                f"you may not ask the operator: {error.message}. What is needed is the verb get on services/proxy for "
                f"{SERVICE} in namespace {self.system}: Role flashboot-viewer there has it"
            )
        if error.status == 404:
            return f"there is no {where} ({error.message}): is FlashBoot installed elsewhere? See --system-namespace"
        if error.status == 503:
            look = f"kubectl -n {self.system} get pods -l app.kubernetes.io/name=flashboot-operator"
            return f"no operator answers behind {where} ({error.message}); look at: {look}"
        return f"the operator could not be asked: {error}"


def _default_file() -> str | None:
    """None inside a cluster, where the pod's service account is taken."""
    file = os.path.expanduser("~/.kube/config")
    return None if "KUBERNETES_SERVICE_HOST" in os.environ and not os.path.exists(file) else file


def _not_installed(missing: ImportError) -> CannotDo:
    return CannotDo(f"{missing}: this command needs more of the package: pip install 'flashboot[cli]'")
