"""What every part of the configuration shares: frozen, strict sections and the types of their fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NAME = r"^[a-z][a-z0-9_]*$"
#: Becomes part of file names, which end at 255 bytes.
Name = Annotated[str, Field(pattern=NAME, max_length=64, description="lower-case letters, digits and underscores")]
Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, lt=1)]


class Frozen(BaseModel):
    """Base of every section: immutable, strict types, finite numbers, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
