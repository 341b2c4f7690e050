"""What the operator knows of ModelReplicas, when words cross one another on their way."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from flashboot_operator.core.note import Note
from flashboot_operator.kube.client import Kube, NotFound, Unavailable
from flashboot_operator.kube.events import event
from flashboot_operator.reconcile.objects import Objects

KEY = ("ns", "m")
Object = dict[str, Any]


def model_replica(version: str) -> Object:
    return {"metadata": {"namespace": "ns", "name": "m", "resourceVersion": version}}


class Asked:
    """An API server that answers when it is told to."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.answer: asyncio.Future[Object] = asyncio.get_running_loop().create_future()

    async def get(self, path: str, **_: object) -> Object:
        self.paths.append(path)
        return await self.answer

    def will(self, answer: Object | Exception) -> None:
        self.answer = asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


async def test_a_deletion_that_is_seen_while_the_object_is_asked_for_is_not_lost() -> None:
    kube = Asked()
    objects = Objects(cast(Kube, kube))
    asking = asyncio.create_task(objects.get(KEY))
    await asyncio.sleep(0)
    objects.doubt(KEY)  # the answer that is on its way is older than this
    kube.answer.set_result(model_replica("7"))
    assert await asking is not None
    kube.will(NotFound(404, "NotFound", ""))
    assert await objects.get(KEY) is None


async def test_a_doubt_outlives_a_question_that_got_no_answer() -> None:
    kube = Asked()
    objects = Objects(cast(Kube, kube))
    objects.show(model_replica("7"))
    objects.doubt(KEY)
    kube.will(Unavailable(0, "Timeout", ""))
    with pytest.raises(Unavailable):
        await objects.get(KEY)
    kube.will(NotFound(404, "NotFound", ""))
    assert await objects.get(KEY) is None


async def test_after_etcd_was_restored_the_server_is_believed_though_its_versions_are_earlier() -> None:
    kube = Asked()
    objects = Objects(cast(Kube, kube))
    objects.show(model_replica("70"))
    objects.doubt(KEY)
    kube.will(model_replica("55"))
    assert await objects.get(KEY) == model_replica("55"), "the answer to a question that was asked after 70 was seen"
    objects.show(model_replica("70"))
    kube.will({"metadata": {}, "items": [model_replica("56")]})
    await objects.list()
    assert objects.peek(KEY) == model_replica("56")
    objects.show(model_replica("57"))
    assert objects.peek(KEY) == model_replica("57"), "and what happens then is seen"


@pytest.mark.parametrize("listing", [False, True])
async def test_an_answer_that_is_overtaken_on_its_way_changes_nothing(listing: bool) -> None:
    kube = Asked()
    objects = Objects(cast(Kube, kube))
    objects.show(model_replica("7"))
    objects.doubt(KEY)
    asking = asyncio.ensure_future(objects.list() if listing else objects.get(KEY))
    await asyncio.sleep(0)
    objects.show(model_replica("9"))
    late = model_replica("8")
    kube.answer.set_result({"metadata": {}, "items": [late]} if listing else late)
    await asking
    assert objects.peek(KEY) == model_replica("9")


@pytest.mark.parametrize("name", ["../../pods", "m/status", "m?watch=true", "", "M", "m\n"])
async def test_what_a_pods_volume_names_is_no_path_of_the_api_server(name: str) -> None:
    kube = Asked()
    assert await Objects(cast(Kube, kube)).get(("ns", name)) is None
    assert kube.paths == []


def test_a_note_is_short_enough_in_bytes() -> None:
    made = event(Note("Warning", "PodFailed", "Reconcile", "é" * 1000, "s"), "n", "ns", {}, instance="t")
    assert len(made["message"].encode()) == 1024
