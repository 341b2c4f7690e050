"""`flashboot-operator`: run the operator until SIGTERM.

Exit codes: 0 told to end, 1 cannot run here (the message says why), 3 the Lease was lost; kubelet starts it again.
"""

from __future__ import annotations

import asyncio
import os
import sys

from flashboot_operator import logs
from flashboot_operator.core.settings import from_environment
from flashboot_operator.kube.lease import LeaseLost
from flashboot_operator.kube.schema import SchemaMismatch
from flashboot_operator.reconcile.operator import run


def main() -> int:
    try:
        settings = from_environment(os.environ)
    except ValueError as error:
        sys.stderr.write(f"flashboot-operator: {error}\n")
        return 1
    logs.configure(settings.identity, settings.log_level)
    try:
        asyncio.run(run(settings, os.environ.get("KUBECONFIG")))
    except SchemaMismatch as error:
        sys.stderr.write(f"flashboot-operator: {error}\n")
        return 1
    except LeaseLost as error:
        sys.stderr.write(f"flashboot-operator: {error}; ending, so that only one operator acts\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
