"""A rank by its place. Without pydantic, so that an engine asks for its arena before it has imported anything large."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import Self

    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

MOST: Final = {"pp": 4095, "tp": 4095, "draft": 255}


class Place(tuple[int, int, int]):
    """A rank by its place in its replica, never by its world rank. (A NamedTuple takes long to define.)

    Pipeline and tensor rank suffice: the ranks within experts (EP, MoE-TP, MoE-DP) and attention (TP, DP, CP) follow
    from the tensor rank and the sizes, and sizes are part of the identity. Copies of a whole model side by side in one
    pod (plain data parallelism) have the same places, and the same bytes.
    """

    __slots__ = ()

    def __new__(cls, pp: int = 0, tp: int = 0, draft: int = 0) -> Self:
        """draft: 0 is the main model; else the number of a draft model, from 1."""
        return super().__new__(cls, (pp, tp, draft))

    def __getnewargs__(self) -> tuple[int, int, int]:
        return self.pp, self.tp, self.draft

    pp = property(itemgetter(0))
    tp = property(itemgetter(1))
    draft = property(itemgetter(2))

    def __repr__(self) -> str:
        return f"Place(pp={self.pp}, tp={self.tp}, draft={self.draft})"

    def fields(self) -> dict[str, int]:
        """By their names, as in messages."""
        return {"pp": self.pp, "tp": self.tp, "draft": self.draft}

    def __str__(self) -> str:
        """Short, for people, and different for each place: `tp1`, `pp2-tp0`, `tp0-draft1`."""
        return (f"pp{self.pp}-" if self.pp else "") + f"tp{self.tp}" + (f"-draft{self.draft}" if self.draft else "")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """In messages an object with these three fields, each within its bounds."""
        from pydantic_core import core_schema as schema

        numbers = {
            name: schema.typed_dict_field(schema.int_schema(ge=0, le=most), required=False)
            for name, most in MOST.items()
        }
        fields = schema.typed_dict_schema(numbers, extra_behavior="forbid")
        read = schema.no_info_after_validator_function(lambda found: cls(**found), fields)
        return schema.json_or_python_schema(
            json_schema=read,
            python_schema=schema.union_schema([schema.is_instance_schema(cls), read]),
            serialization=schema.plain_serializer_function_ser_schema(cls.fields),
        )
