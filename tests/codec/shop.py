"""Classes as a project would have them, for the codec to find by name."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import namedtuple
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pydantic
from django.db import models
from django.utils.translation import gettext_lazy
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, PrivateAttr, SecretStr
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rivet_workflows.codec import stable_name

T = TypeVar("T")


class Status(enum.StrEnum):
    PENDING = "pending"
    PAID = "paid"


class Delivery(models.TextChoices):
    POST = "post", gettext_lazy("By post")
    COURIER = "courier", gettext_lazy("By courier")


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Color(enum.Enum):
    RED = (255, 0, 0)
    BLUE = object()


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.IntFlag):
    A = 1
    B = 4


class Point(NamedTuple):
    x: int
    y: int = 0


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Line:
    sku: str
    quantity: int = 1
    tags: list[str] = field(default_factory=list)

    class Inner(enum.Enum):
        ONE = 1


@dataclass(frozen=True, slots=True)
class Money:
    amount: Any
    currency: str = "EUR"


@dataclass
class Hashed:
    """A class whose construction changes its fields: decoding must not."""

    password: str
    salt: InitVar[str] = "pepper"
    length: int = field(init=False, default=0)
    made: ClassVar[int] = 0

    def __post_init__(self, salt: str) -> None:
        type(self).made += 1
        self.password = f"hashed:{salt}:{self.password}"
        self.length = len(self.password)


@stable_name("shop.order.v1")
@dataclass
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)


@dataclass(slots=True)
@stable_name("shop.slotted.v1")
class Slotted:
    number: int


class Customer(BaseModel):
    name: str
    age: int = 18
    nickname: str | None = Field(default=None, alias="nick")
    _seen: int = PrivateAttr(default=0)
    validated: ClassVar[int] = 0

    @pydantic.field_validator("name")
    @classmethod
    def _upper(cls, value: str) -> str:
        cls.validated += 1
        return value.upper() + "!"


class Open(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    id: int


class Box(BaseModel, Generic[T]):
    content: T


class Link(BaseModel):
    url: HttpUrl


class Login(BaseModel):
    user: str
    password: SecretStr


class Defaults(BaseModel):
    first: int
    second: list[int] = Field(default_factory=lambda: [1, 2])
    third: int = Field(default_factory=lambda data: data["first"] * 2)


@pydantic_dataclass
class Checked:
    a: int
    b: int = Field(default=3)


@dataclass
class Cached:
    a: int

    @functools.cached_property
    def double(self) -> int:
        return self.a * 2


@dataclass
class Hidden:
    a: int

    def __post_init__(self) -> None:
        self._lock = object()


@dataclass
class Failure(Exception):
    a: int


@dataclass
class Plain:
    """Not stored by name alone: a test swaps it."""

    a: int


class Geo:
    """A custom type, as of a GIS field."""

    def __init__(self, lon: float, lat: float) -> None:
        self.lon, self.lat = lon, lat

    def __eq__(self, other: object) -> bool:
        return type(other) is Geo and (self.lon, self.lat) == (other.lon, other.lat)

    def __hash__(self) -> int:
        return hash((self.lon, self.lat))


def make_local() -> Any:
    """A dataclass that nobody can find again."""
    return dataclasses.make_dataclass("Local", ["a"])(1)
