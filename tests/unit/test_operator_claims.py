"""Whose a pod is: both sides agree that one which two claim gets nothing."""

from __future__ import annotations

import pytest

from flashboot_operator.agents.wishes import Wish, Wishes
from flashboot_operator.core.claims import barred_of, divide
from flashboot_operator.core.facts import Pod
from tests.unit.operatorkit import pod, uid

OURS = "ReplicaSet m-5d8f7c"


@pytest.mark.parametrize(
    ("it", "adopts", "words"),
    [
        (pod("p", "n1", made_by=OURS, volume_of="m"), False, ""),
        (pod("p", "n1", made_by="StatefulSet m-0", volume_of="m"), False, ""),
        (pod("p", "n1"), True, ""),
        (pod("p", "n1", made_by="Job x"), True, ""),
        (pod("p", "n1", made_by=OURS, volume_of="other"), False, "its FlashBoot volume says other"),
        (pod("p", "n1", volume_of="other"), True, "its FlashBoot volume says other"),
        (pod("p", "n1", made_by="Job x", volume_of="m"), False, "Job x made it"),
        (pod("p", "n1", volume_of="m"), False, "a person made it"),
        (pod("p", "n1"), False, "off the pod"),
        (pod("p", "n1", made_by="ReplicaSet mm-5d8f7c"), False, "ReplicaSet mm-5d8f7c made it"),
    ],
)
def test_who_claims_it(it: Pod, adopts: bool, words: str) -> None:
    mine, strays = divide("m", [it], adopts=adopts)
    if not words:
        assert (mine, strays) == ((it,), ())
        return
    [stray] = strays
    assert (mine, stray.pod, stray.trouble.reason) == ((), it, "PodClaimedTwice")
    assert words in stray.trouble.message
    assert barred_of(strays) == {"n1": {uid("p")}}


def test_a_stray_that_goes_is_no_trouble_and_one_without_a_node_is_nobodys() -> None:
    assert divide("m", [pod("p", "n1", going=True)], adopts=False) == ((), ())
    _, strays = divide("m", [pod("p", None)], adopts=False)
    assert len(strays) == 1
    assert barred_of(strays) == {}


def test_a_node_is_told_of_them_once_and_told_again_when_that_changes() -> None:
    wishes, one, two = Wishes(), Wish(barred={"n1": frozenset({"a"})}), Wish(barred={"n1": frozenset({"a", "b"})})
    wishes.put(("ns", "m"), one)
    wishes.put(("ns", "other"), two)
    assert wishes.of("n1").barred == ["a", "b"]
    assert wishes.of("n2").barred == []
    assert wishes.whose("n1") == {("ns", "m"), ("ns", "other")}
    assert one.differs(two, "n1")
    assert not one.differs(two, "n2")
