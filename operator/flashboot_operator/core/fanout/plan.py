"""The fan-out plan of one arena: who pulls which lane from whom.

A chain by arrival in each lane, which an event-driven simulation found to be within a few percent of the best: each
target, once it is ready, attaches below the freest peer with the highest watermark, so that it neither waits for its
parent nor loads the source (simulate.py and `python -m bench.plan` show it). What always holds, whatever the facts:

* In each lane a forest: no cycles; only nodes that have the arena are parents.
* A *new* edge hangs below a node that has all of the lane, with a parent whose watermark is at least the child's;
  inside a domain no parent gets a second child in a lane by a new edge.
* An edge that works is never changed, but to get away from a slow parent. So an arrival changes no edge of others and
  adds one per lane; a death changes one edge per child of the dead, a demotion one more.
* The same facts give the same plan.
"""

from __future__ import annotations

from flashboot_operator.core.fanout.attach import attach_all
from flashboot_operator.core.fanout.forest import Forest
from flashboot_operator.core.fanout.model import Facts, Plan
from flashboot_operator.core.fanout.repair import keep, repair


def plan(facts: Facts) -> Plan:
    return tuple({child: edges[child] for child in sorted(edges)} for edges in grown(facts).parent)


def grown(facts: Facts) -> Forest:
    """The forest of the plan, for further questions (fallbacks.py)."""
    forest = Forest(facts)
    for lane in forest.lanes:
        keep(forest, lane)
        repair(forest, lane)
    attach_all(forest)
    return forest
