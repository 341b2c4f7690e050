"""`fanout`: one link against the C loop, and N targets at once against S/B. `repair`: a killed node, and a slow one."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from bench.fanout.clones import Victim, clone
from bench.fanout.limit import between
from bench.kit.certificates import Pair, pair
from bench.kit.outcome import Options, Outcome
from bench.kit.paired import Pairs, RunFailed, Sample, paired
from bench.kit.rows import Goal, Row, at_least, at_most, failed
from bench.kit.say import say
from bench.rig.links import Links
from bench.rig.rack import Rack, dead
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES

MBIT = 300.0
"""Of one link that is measured alone."""
MANY_MBIT = 100.0
"""Of each link when there are many: all nodes share the CPUs of this machine, which shall not be what is measured."""
SECURE = True
"""Clones to many go over TLS, as in a cluster."""
MIB = 1 << 20


def fanout(options: Options) -> Outcome:
    outcome = Outcome()
    nbytes = (32 if options.quick else 256) * MIB
    for secure in (False, True):
        outcome.part(f"one link, TLS {_word(secure)}", partial(_link, outcome, options, nbytes, secure))
    for count, bound in [(4, 1.10)] if options.quick else [(8, 1.10), (17, 1.15)]:
        outcome.part(f"{count} targets", partial(_many, outcome, options, nbytes, count, bound))
    return outcome


def repair(options: Options) -> Outcome:
    outcome = Outcome()
    count, nbytes = (4, 64 * MIB) if options.quick else (8, 256 * MIB)
    outcome.part(f"{count} targets with faults", lambda: _faults(outcome, options, nbytes, count))
    return outcome


def _link(outcome: Outcome, options: Options, nbytes: int, secure: bool) -> None:
    word = _word(secure)
    with ExitStack() as stack:
        links = stack.enter_context(Links(2, MBIT))
        tls: Pair | None = pair(options.logs / "certificates") if secure else None
        rack = stack.enter_context(Rack(links, nbytes, secure=secure))
        limit = stack.enter_context(between(links, nbytes, tls, options.logs))
        pairs = paired({"C loop": limit, "flashboot": lambda: clone(rack, links)}, min(options.rounds, 3), say)
    outcome.details[f"link, TLS {word}"] = pairs.samples
    outcome.rows.append(
        pairs.ratio(
            f"one link of {MBIT:g} Mbit/s, TLS {word}: share of the C loop's goodput",
            "flashboot",
            "C loop",
            at_least(0.95),
        )
    )
    outcome.rows.append(_cpu_row(pairs, f"one link, TLS {word}: CPU seconds per GB over the C loop's", nbytes))


def _cpu_row(pairs: Pairs, what: str, nbytes: int) -> Row:
    try:
        ours, limit = pairs.median("flashboot", "cpu"), pairs.median("C loop", "cpu")
    except RunFailed as error:
        return failed(what, "x", at_most(1.3), error)
    note = f"{ours / nbytes * 1e9:.2f} s/GB, C loop {limit / nbytes * 1e9:.2f} s/GB"
    return Row(what, ours / limit, "x", at_most(1.3), note)


def _many(outcome: Outcome, options: Options, nbytes: int, count: int, bound: float) -> None:
    with ExitStack() as stack:
        links = stack.enter_context(Links(count + 1, MANY_MBIT))
        rack = stack.enter_context(Rack(links, nbytes, secure=SECURE))
        limit = stack.enter_context(between(links, nbytes, pair(options.logs / "certificates"), options.logs))
        pairs = paired({"C loop": limit, "flashboot": lambda: clone(rack, links)}, min(options.rounds, 3), say)
    outcome.details[f"{count} targets"] = pairs.samples
    outcome.rows.append(
        _over(pairs, f"{count} targets at once, last one, over S/B (one C loop)", "flashboot", "C loop", at_most(bound))
    )
    outcome.rows.append(
        _largest(pairs, f"{count} targets at once: the source sends, over S", "flashboot", "source", at_most(1.02))
    )
    outcome.rows.append(
        _largest(pairs, f"{count} targets at once: on the source's wire, over S", "flashboot", "source_on_wire", None)
    )


def _faults(outcome: Outcome, options: Options, nbytes: int, count: int) -> None:
    with ExitStack() as stack:
        links = stack.enter_context(Links(count + 1, MANY_MBIT))
        rack = stack.enter_context(Rack(links, nbytes, secure=SECURE))
        contestants = {
            "no fault": lambda: clone(rack, links),
            "one killed": lambda: _killed(rack, links),
            "one slow": lambda: _slowed(rack, links),
        }
        pairs = paired(contestants, min(options.rounds, 3), say)
    outcome.details[f"{count} targets with faults"] = pairs.samples
    what = f"inner node of {count} killed at 50 %"
    outcome.rows.append(_over(pairs, f"{what}: last survivor over no fault", "one killed", "no fault", at_most(1.25)))
    outcome.rows.append(_largest(pairs, f"{what}: the source sends, over S", "one killed", "source", at_most(1.5)))
    outcome.rows.append(_twice(pairs, f"{what}: received twice, beyond chunks that failed their digest"))
    outcome.rows.append(
        _over(
            pairs,
            f"one of {count} at 25 % of its link: the others over no fault",
            "one slow",
            "no fault",
            at_most(1.10),
        )
    )


def _killed(rack: Rack, links: Links) -> Sample:
    try:
        return clone(rack, links, victim=Victim(rack))
    finally:
        for node in rack.nodes[1:]:
            if dead(node):
                rack.restart(node)


def _slowed(rack: Rack, links: Links) -> Sample:
    """The first of the chain, so that everybody is below it."""
    node = rack.nodes[1]
    links.set_rate(1, MANY_MBIT / 4)
    try:
        return clone(rack, links, slow=node)
    finally:
        links.set_rate(1, MANY_MBIT)


def _over(pairs: Pairs, what: str, name: str, over: str, goal: Goal) -> Row:
    """How many times as long `name` took as `over`, round by round."""
    try:
        figures = sorted(1 / speedup for speedup in pairs.speedups(name, over))
    except RunFailed as error:
        return failed(what, "x", goal, error)
    note = f"{pairs.seconds(name):.2f} s, {over} {pairs.seconds(over):.2f} s"
    return Row(what, figures[len(figures) // 2], "x", goal, note, (figures[0], figures[-1]))


def _largest(pairs: Pairs, what: str, name: str, key: str, goal: Goal | None) -> Row:
    try:
        return Row(what, pairs.largest(name, key), "x", goal)
    except RunFailed as error:
        return failed(what, "x", goal, error)


def _twice(pairs: Pairs, what: str) -> Row:
    try:
        excess = max(s["twice"] - s["refetched"] for s in pairs.of("one killed"))
    except RunFailed as error:
        return failed(what, "bytes", at_most(0), error)
    return Row(what, float(excess), "bytes", at_most(0), f"a chunk has {DIGEST_CHUNK_BYTES} bytes")


def _word(secure: bool) -> str:
    return "on" if secure else "off"
