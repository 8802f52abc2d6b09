"""What every section of the configuration shares: strict, frozen models, types of fields, and what a change reruns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

NAME = r"^[a-z][a-z0-9_]*$"
#: Becomes part of file names, which end at 255 bytes.
Name = Annotated[str, Field(pattern=NAME, max_length=64, description="lower-case letters, digits and underscores")]
Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, lt=1)]


class Reruns:
    """Marks a field, or a section with all its fields: the stages that run again when it changes.

    Named are the stages whose slice of the configuration (`iha.planning.slices`) holds the field. What depends on their
    results follows by itself. Every field of the configuration has a mark, its own, its class's (`effect`) or that of a
    section around it; a test changes each one and compares. So a setting is added in one line, in the class whose
    fields its stage already receives. Without stages: nothing runs again.
    """

    def __init__(self, *stages: str) -> None:
        self.stages = stages


class Frozen(BaseModel):
    """Base of every section: immutable, strict types, finite numbers, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    #: Mark of the fields that this very class adds; None: it has none of its own.
    effect: ClassVar[Reruns | None] = None

    @classmethod
    def of(cls, section: BaseModel, **more: Any) -> Self:
        """An instance with the fields it shares with `section`, and `more`."""
        shared = {name: getattr(section, name) for name in cls.model_fields if hasattr(section, name)}
        return cls(**{**shared, **more})


def marks(section: type[BaseModel], name: str) -> Iterator[Reruns]:
    """The marks of one field of a section: its own, in any base class, and that of the class which adds it."""
    owners = [c for c in section.__mro__ if issubclass(c, BaseModel) and name in getattr(c, "model_fields", {})]
    for owner in owners:
        info: FieldInfo = owner.model_fields[name]
        yield from (mark for mark in info.metadata if isinstance(mark, Reruns))
    of_class = owners[-1].__dict__.get("effect")
    if of_class is not None:
        yield of_class
