"""The API server's audit log of everything before: nobody of ours was refused, nobody did what the chart does not say.

Runs last (tests run in the order of their files' names).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from kit.chart import ROOT
from kit.eventually import NotYet, eventually
from kit.rights import granted, report, used
from kit.world import World
from rack.settings import LOGS

OURS = "system:serviceaccount:flashboot-system:"
UNUSED = ROOT / "build" / "e2e" / "unused-verbs.txt"


def audit() -> list[dict[str, Any]]:
    """Finished requests of our service accounts. The last line may be half written."""
    lines = (LOGS / "audit.log").read_text().splitlines()[:-1]
    entries = [json.loads(line) for line in lines]
    return [entry for entry in entries if entry["user"]["username"].startswith(OURS)]


def test_no_request_of_ours_was_forbidden(world: World) -> None:
    eventually(_audited, "the audit log to tell of our operator", 60)
    forbidden = [entry for entry in audit() if entry.get("responseStatus", {}).get("code") in (401, 403)]
    shown = Counter((entry["user"]["username"], entry["verb"], entry["requestURI"]) for entry in forbidden)
    assert not forbidden, shown.most_common(20)


def _audited() -> None:
    if not audit():
        raise NotYet("no entry yet")


def test_only_the_operator_speaks_to_the_api_server(world: World) -> None:
    assert {entry["user"]["username"] for entry in audit()} == {f"{OURS}flashboot-operator"}


def test_rights_that_nobody_used_are_listed(world: World, chart_objects: list[dict[str, Any]]) -> None:
    """Not a failure: a rarely used right may be needed. The list is there to be read."""
    entries = audit()
    UNUSED.parent.mkdir(parents=True, exist_ok=True)
    UNUSED.write_text(report(chart_objects, entries))
    print(f"rights that nobody used ({UNUSED.relative_to(ROOT)}):\n{UNUSED.read_text() or 'none'}")
    beyond = {right for right in used(entries) - granted(chart_objects) if not right.resource.startswith("selfsubject")}
    assert not beyond, "done with rights that are not the chart's: " + ", ".join(map(str, sorted(beyond)))
