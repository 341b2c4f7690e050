"""Scaling and roll-out of groups: the limits hold at every step, whatever the groups do, and the end is reached."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_operator.core.turnover import Group, Step, next_step

some_groups = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8).map(
    lambda flags: [Group(f"m-{i}", current, ready) for i, (current, ready) in enumerate(flags)]
)
limits = st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 3)).filter(lambda x: x[1] or x[2])


def step(groups: list[Group], replicas: int, surge: int, unavailable: int) -> Step:
    cheapest = sorted(groups, key=lambda g: g.ready)
    taken = {int(g.name[2:]) for g in groups}
    return next_step(cheapest, replicas=replicas, max_surge=surge, max_unavailable=unavailable, taken=taken)


def after(groups: list[Group], done: Step) -> list[Group]:
    return [g for g in groups if g.name not in done.delete] + [Group(f"m-{i}", True, False) for i in done.create]


@settings(deadline=None)
@given(some_groups, limits)
def test_no_step_goes_beyond_the_limits(groups: list[Group], given_limits: tuple[int, int, int]) -> None:
    replicas, surge, unavailable = given_limits
    done = step(groups, *given_limits)
    left = after(groups, done)
    ready = sum(g.ready for g in groups)
    assert sum(g.ready for g in left) >= min(ready, replicas - unavailable)
    if done.create:
        assert len(groups) + len(done.create) <= replicas + surge
    assert len({g.name for g in left}) == len(left), "a name that is in use is not taken again"
    assert set(done.delete) <= {g.name for g in groups}
    if all(g.current for g in groups):
        assert len(left) == replicas, "scaling is not held up"
        assert sum(g.ready for g in left) == min(ready, replicas)


@settings(deadline=None)
@given(some_groups, limits)
def test_every_roll_out_ends_when_groups_become_ready(groups: list[Group], given_limits: tuple[int, int, int]) -> None:
    replicas, *_ = given_limits
    for _ in range(100):
        done = step(groups, *given_limits)
        groups = after(groups, done)
        if done == Step():
            if all(g.current and g.ready for g in groups):
                break
            groups = [replace(g, ready=g.ready or g.current) for g in groups]
    assert [g.current and g.ready for g in groups] == [True] * replicas
    assert step(groups, *given_limits) == Step()


@settings(deadline=None)
@given(some_groups, limits)
def test_a_template_that_never_becomes_ready_stops_at_the_limits(
    groups: list[Group], given_limits: tuple[int, int, int]
) -> None:
    """Whoever serves goes on: the new groups stay unready for ever."""
    replicas, surge, unavailable = given_limits
    groups = [replace(g, current=False, ready=True) for g in groups][:replicas]
    served = len(groups)
    for _ in range(50):
        groups = after(groups, step(groups, *given_limits))
        assert len(groups) <= replicas + surge
    assert sum(g.ready for g in groups) >= min(served, replicas - unavailable)


def test_going_back_removes_what_was_begun() -> None:
    """The template of those that serve is the present one again; the broken group goes, although one of them is not
    Ready at the moment and the limits would keep it."""
    groups = [Group("m-0", True, True), Group("m-1", True, False), Group("m-2", False, False)]
    assert step(groups, 2, 1, 0) == Step(delete=("m-2",))


def test_an_unready_group_of_the_old_template_makes_way_first() -> None:
    groups = [Group("m-0", False, True), Group("m-1", False, False), Group("m-2", False, True)]
    assert step(groups, 3, 0, 1) == Step(delete=("m-1",))
    assert step(groups, 3, 1, 0) == Step(create=(3,))
