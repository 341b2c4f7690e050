"""`clone`: the agent's loops beside loops in C, real agents, and an agent's own memory while it makes many clones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from bench.clone import agents
from bench.clone.peers import PEERS
from bench.fanout.limit import c_loop
from bench.kit.certificates import Pair, pair
from bench.kit.native import program
from bench.kit.outcome import Options, Outcome
from bench.kit.pages import offered
from bench.kit.paired import Pairs, Run, RunFailed, Sample, paired
from bench.kit.rows import Row, at_least, at_most, failed
from bench.kit.say import say
from bench.kit.worker import Worker, cpu_seconds
from bench.load.ours import THREADS
from flashboot_agent.memory.memfd import Pages

MIB = 1 << 20
_OVER_LOOPBACK = {False: 0.9, True: 0.8}
_MOST_MEMORY = 150.0
_CLONES = 16


def clone(options: Options) -> Outcome:
    outcome = Outcome()
    nbytes = (64 if options.quick else 1024) * MIB
    with offered(nbytes, 5) as kinds:
        for pages in kinds:
            outcome.part(f"on one node, {pages} pages", partial(_on_node, outcome, options, nbytes, pages))
        for secure in (False, True):
            word = "on" if secure else "off"
            what = f"over loopback, TLS {word}"
            outcome.part(what, partial(_over_loopback, outcome, options, nbytes, kinds[0], secure))
            what = f"between agents over loopback, TLS {word}"
            outcome.part(what, partial(_between_agents, outcome, options, nbytes, kinds[0], secure))
    outcome.part("memory of an agent", partial(_memory, outcome, options))
    return outcome


def _on_node(outcome: Outcome, options: Options, nbytes: int, pages: Pages) -> None:
    with ExitStack() as stack:
        limit = stack.enter_context(
            Worker(f"memcpy-{pages}", [program("copy_limit"), str(THREADS), pages, str(nbytes)], logs=options.logs)
        )
        ours = stack.enter_context(_loop(options, "copy", nbytes, pages))
        ours.call("run", check=True)
        pairs = paired({"memcpy": limit.run, "map": ours.run}, options.rounds, say)
    label = f"clone on one node, {nbytes // MIB} MiB, {pages} pages"
    outcome.details[label] = pairs.samples
    outcome.rows.append(
        pairs.ratio(f"{label}: with digests, over memcpy with {THREADS} threads", "map", "memcpy", at_least(0.75))
    )


def _over_loopback(outcome: Outcome, options: Options, nbytes: int, pages: Pages, secure: bool) -> None:
    tls = pair(options.logs / "certificates") if secure else None
    with ExitStack() as stack:
        limit = stack.enter_context(c_loop("127.0.0.1", nbytes, tls, options.logs, pages=pages))
        ours = stack.enter_context(_pulled(options, nbytes, pages, tls))
        others, failures = _peers(stack, options, nbytes) if not secure else ({}, {})
        pairs = paired({"C loop": limit, "pull": ours, **others}, options.rounds, say)
    pairs.failures |= failures
    word = f"TLS {'on' if secure else 'off'}"
    label = f"clone over loopback, {nbytes // MIB} MiB, {pages} pages, {word}"
    outcome.details[label] = pairs.samples
    goal = at_least(_OVER_LOOPBACK[secure])
    outcome.rows.append(pairs.ratio(f"{label}: with digests, over the C loop", "pull", "C loop", goal))
    outcome.rows += [pairs.ratio(f"{label}: over {peer}", "pull", peer) for peer in (PEERS if not secure else ())]
    outcome.rows.append(_cpu(pairs, f"{label}: CPU seconds over the C loop's", "pull", nbytes))


def _peers(stack: ExitStack, options: Options, nbytes: int) -> tuple[dict[str, Run], dict[str, str]]:
    """Those that run, and why the others don't."""
    runs: dict[str, Run] = {}
    failures: dict[str, str] = {}
    for name, peer in PEERS.items():
        try:
            runs[name] = stack.enter_context(peer(nbytes, options.logs))
        except RunFailed as error:
            say(f"{name} failed: {error}")
            failures[name] = str(error)
    return runs, failures


@contextmanager
def _pulled(options: Options, nbytes: int, pages: Pages, tls: Pair | None) -> Iterator[Run]:
    with (
        _loop(options, "serve", nbytes, pages, *(map(str, tls.server) if tls else [])) as source,
        _loop(options, "pull", nbytes, pages, *(map(str, tls.client) if tls else [])) as target,
    ):
        target.call("run", check=True)

        def run() -> Sample:
            before = cpu_seconds(source.pid)
            sample = target.run()
            return {**sample, "cpu": sample["cpu"] + cpu_seconds(source.pid) - before}

        yield run


def _loop(options: Options, role: str, nbytes: int, pages: Pages, *files: str) -> Worker:
    words = [sys.executable, "-m", "bench.clone.loops", role, str(nbytes), pages, *files]
    return Worker(f"{role}-{pages}{'-tls' if files else ''}", words, logs=options.logs)


def _between_agents(outcome: Outcome, options: Options, nbytes: int, pages: Pages, secure: bool) -> None:
    """`pages`: what agents choose by themselves, the best that there is."""
    tls = pair(options.logs / "certificates") if secure else None
    with ExitStack() as stack:
        limit = stack.enter_context(c_loop("127.0.0.1", nbytes, tls, options.logs, pages=pages))
        ours = stack.enter_context(agents.cloned(nbytes, secure=secure))
        pairs = paired({"C loop": limit, "agents": ours}, options.rounds, say)
    label = f"clone between two agents over loopback, {nbytes // MIB} MiB, TLS {'on' if secure else 'off'}"
    outcome.details[label] = pairs.samples
    transports = sorted({str(sample["transport"]) for sample in pairs.samples["agents"]})
    row = pairs.ratio(f"{label}: over the C loop ({', '.join(transports)})", "agents", "C loop")
    outcome.rows.append(row)


def _cpu(pairs: Pairs, what: str, name: str, nbytes: int) -> Row:
    try:
        ours, limit = pairs.median(name, "cpu"), pairs.median("C loop", "cpu")
    except RunFailed as error:
        return failed(what, "x", None, error)
    return Row(what, ours / limit, "x", None, f"{ours / nbytes * 1e9:.2f} s/GB, C loop {limit / nbytes * 1e9:.2f} s/GB")


def _memory(outcome: Outcome, options: Options) -> None:
    what = f"memory of an agent beside its arenas, {_CLONES} clones running"
    source, target = agents.memory(_CLONES, (16 if options.quick else 256) * MIB)
    outcome.details[what] = {"source": source, "target": target}
    for role, figures in (("the target", target), ("the source", source)):
        note = ", ".join(f"{key} {value:.0f} MiB" for key, value in figures.items())
        outcome.rows.append(Row(f"{what}: {role}", sum(figures.values()), "MiB", at_most(_MOST_MEMORY), note))
