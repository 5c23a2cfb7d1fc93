"""Actors that the tests of the calling side use."""

from __future__ import annotations

from dataclasses import dataclass, field

from rivet_workflows import Actor, Event, Queue, UserError, action


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class CartState:
    owner: str = ""
    lines: list[Line] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


class Cart(Actor, name="cart"):
    """A plain actor: state and actions, no workflow."""

    state = CartState
    changed = Event(int)
    notes = Queue(str)

    @action(read_only=True)
    def get_lines(self, c) -> list[Line]:
        lines: list[Line] = c.state.lines
        return lines

    @action
    def add(self, c, line: Line) -> int:
        c.state.lines.append(line)
        c.broadcast(Cart.changed, len(c.state.lines))
        return len(c.state.lines)

    @action
    async def aadd_slowly(self, c, line: Line) -> int:
        c.state.lines.append(line)
        return len(c.state.lines)

    @action
    def add_and_fail(self, c, line: Line) -> None:
        c.state.lines.append(line)
        c.broadcast("changed", 99)
        c.queue.send("notes", "never seen")
        raise UserError("no more today", code="closed", metadata={"until": "tomorrow"})

    @action
    def note(self, c, text: str) -> None:
        c.queue.send(Cart.notes, text)

    @action(read_only=True)
    def peek_and_poke(self, c) -> None:
        c.state.owner = "nobody"

    @action
    def close(self, c) -> None:
        c.destroy()

    @action
    def who(self, c) -> tuple:
        return self.key, self.actor_id, c.name, c.key

    @action(on_worker=True)
    def flush(self, c) -> None: ...

    def on_destroy(self, c) -> None:
        c.state.log.append("destroyed")
        DESTROYED.append(self.key)


#: Keys of the carts whose on_destroy ran.
DESTROYED: list = []


@dataclass
class OrderPlaced:
    order_id: int
    total: float = 0.0


class Order(Actor, name="order"):
    """An actor with a workflow; no worker runs it in these tests."""

    orders = Queue(OrderPlaced)
    control = Queue(name="control-commands")

    async def run(self, ctx): ...
