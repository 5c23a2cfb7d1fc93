"""What is said when code does not fit the history, or is used as it cannot be: the entry, the call, and the mend."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from rivet_workflows.engine import Limits, Loop
from rivet_workflows.exceptions import SerializationError
from tests.conformance.conftest import Drive
from tests.engine.driver import Driver
from tests.engine.steps import echo, fail, step


def told_with_line(driver: Driver) -> str:
    """Why it may not go on, or has failed."""
    if driver.set_aside is not None:
        return str(driver.set_aside.error.message)
    return str((driver.error.error or driver.error).message)


def told(driver: Driver) -> str:
    return re.sub(r" \(at .+\.py:\d+\)$", "", told_with_line(driver))


async def each(b: Any, item: int) -> Any:
    return await b.step("s", echo, item)


# -- the history holds something else ----------------------------------------------------------------


async def recorded(ctx: Any) -> None:
    await ctx.step("a", echo, 1)
    await ctx.step("a", echo, 2)
    async for it in ctx.loop("l"):
        if it.iteration == 2:
            await it.join("j", x=lambda b: b.step("s", echo), y=lambda b: b.sleep("z", 5))


async def renamed(ctx: Any) -> None:
    await ctx.step("new", echo)


async def renamed_in_a_branch(ctx: Any) -> None:
    await ctx.step("a", echo, 1)
    await ctx.step("a", echo, 2)
    async for it in ctx.loop("l"):
        if it.iteration == 2:
            await it.join("j", x=lambda b: b.step("t", echo), y=lambda b: b.sleep("z", 5))


async def ended(ctx: Any) -> None:
    await ctx.step("a", echo, 1)
    await ctx.step("a", echo, 2)


async def another_kind(ctx: Any) -> None:
    await ctx.step("a", echo, 1)
    await ctx.sleep("a", 1)


async def other_arguments(ctx: Any) -> None:
    await ctx.step("a", echo, 1)
    await ctx.step("a", echo, "x" * 600)


async def repeated_after_all(ctx: Any) -> None:
    await ctx.removed("a#2", "step")
    await ctx.step("a", echo, 7)
    await ctx.step("a", echo)


async def removed_as_another(ctx: Any) -> None:
    await ctx.removed("a", "sleep")


async def removed_and_used(ctx: Any) -> None:
    await ctx.removed("a", "step")
    await ctx.removed("l", "loop")
    await ctx.step("a", echo)


async def other_branches(ctx: Any) -> None:
    await ctx.step("a", echo, 1)
    await ctx.step("a", echo, 2)
    async for it in ctx.loop("l"):
        if it.iteration == 2:
            await it.join("j", x=lambda b: b.step("s", echo), q=lambda b: b.sleep("z", 5), p=step("p"))


PAIRED = (
    "Calls of one name are paired by their order: it must be the same on a replay (sets and directory listings are "
    "not); sort what you iterate over, or give each call its own name"
)
MEND = (
    "If it was renamed or dropped say ctx.removed({0}); if the change is new behaviour gate it with ctx.get_version; "
    "or restore the code"
)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            renamed,
            "the code calls step 'new', which is not in the history, while the history holds step 'a' (entry 1) and "
            "2 more that was not met. " + MEND.format('"a", "step"'),
        ),
        (
            renamed_in_a_branch,
            "the code calls step 'l/~2/j/x/t', which is not in the history, while the history holds step 's' (entry "
            "7) that was not met. " + MEND.format('"s", "step"'),
        ),
        (
            ended,
            "l (loop, entry 5) exists in the history and was not met. Code may have changed: say "
            'ctx.removed("l", "loop"), or restore it',
        ),
        (
            another_kind,
            "a#2 is recorded as a step (entry 3) and the code calls a sleep there: give the new call another name "
            'and declare the old one with ctx.removed("a", "step"), or restore it',
        ),
        (
            other_arguments,
            f'a#2 was recorded with [[2],{{}}] and is met with [["{"x" * 497}. {PAIRED}',
        ),
        (
            repeated_after_all,
            f"a was met with other arguments than recorded, and 'a' is called again. {PAIRED}",
        ),
        (
            removed_as_another,
            "removed('a', 'sleep'): the history holds a step there (entry 1): say ctx.removed(\"a\", \"step\"), or "
            "restore it",
        ),
        (removed_and_used, "a was declared removed and is used again as a step"),
        (
            other_branches,
            "join 'j' (entry 6) was recorded with the branches x, y: branch 'q' is new, branch 'p' is new, branch "
            "'y' is gone. Gate the change with ctx.get_version, or restore the branches",
        ),
    ],
)
def test_br_055_a_divergence_names_the_entry_the_call_and_the_mend(
    drive: Drive, code: Any, text: str
) -> None:
    assert told(drive(recorded).deploy(code)) == text


def test_other_branches_numbers_and_children(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.map("m", each, [1, 2])
        await ctx.child("c", "Ship", 1)
        await ctx.child("open", "Ship", ("eu", 2))

    async def items(ctx: Any) -> Any:
        await ctx.map("m", each, [1, 2, 3])

    async def finished_child(ctx: Any) -> Any:
        await ctx.map("m", each, [1, 2])
        await ctx.child("c", "Boat", 1)

    async def open_child(ctx: Any) -> Any:
        await ctx.map("m", each, [1, 2])
        await ctx.child("c", "Ship", 1)
        await ctx.child("open", "Ship", 3)

    texts = {
        items: "map 'm' (entry 1) was recorded over 2 items and is met with 3: what it is given must come from "
        "recorded results",
        finished_child: "child 'c' (entry 7) was recorded as Ship [1] and is met as Boat [1]: gate the change with "
        "ctx.get_version, or restore the code",
        open_child: "child 'open' (entry 9) was recorded as Ship [\"eu\", 2] and is met as Ship [3]: gate the change "
        "with ctx.get_version, or restore the code",
    }
    for new, text in texts.items():
        driver = drive(old)
        driver.child_done(next(iter(driver.children)), "ok")
        assert told(driver.deploy(new)) == text


def test_what_is_finished_ends_as_it_did(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.join("good", x=step("s"))
        await ctx.try_block("bad", lambda b: b.join("j", x=lambda c: c.step("f", fail, max_retries=0)))
        async for it in ctx.loop("l"):
            await it.step("s", echo)
            if it.iteration == 1:
                break
        await ctx.sleep("z", 5)

    async def fails(ctx: Any) -> Any:
        async def x(b: Any) -> Any:
            await b.step("s", echo)
            raise KeyError("k")

        await ctx.join("good", x=x)

    async def succeeds(ctx: Any) -> Any:
        async def x(b: Any) -> Any:
            await b.try_step("f", fail)

        await ctx.join("good", x=step("s"))
        await ctx.try_block("bad", lambda b: b.join("j", x=x))

    async def goes_on(ctx: Any) -> Any:
        await ctx.join("good", x=step("s"))
        await ctx.try_block("bad", lambda b: b.join("j", x=lambda c: c.step("f", fail, max_retries=0)))
        async for it in ctx.loop("l"):
            await it.step("s", echo)

    mend = "gate the change with ctx.get_version, or restore the code"
    texts = {
        fails: "join 'good' (entry 1) is recorded as completed and now fails: join 'good': failed branches: x: "
        f"KeyError: 'k': {mend}",
        succeeds: f"join 'j' (entry 6) is recorded as failed and now succeeds: {mend}",
        goes_on: "loop 'l' ended in iteration 1 (entry 11) and the code goes on: gate the changed condition with "
        "ctx.get_version, or restore it",
    }
    for new, text in texts.items():
        assert told(drive(old).deploy(new)) == text


def test_nothing_is_new_inside_what_is_finished(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.join("j", x=step("s"))
        await ctx.sleep("z", 5)

    async def new(ctx: Any) -> Any:
        async def x(b: Any) -> Any:
            await b.step("s", echo)
            await b.step("t", echo)

        await ctx.join("j", x=x)

    assert told(drive(old).deploy(new, removed={"z": "sleep"})) == (
        "the code calls step 'j/x/t', which is not in the history, inside something that the history holds as "
        "finished: gate it with ctx.get_version, or restore the code"
    )


def test_nothing_is_new_in_the_last_iteration_of_a_finished_loop(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        for _ in range(2):
            async for it in ctx.loop("l"):
                await it.step("s", echo)
                break
        await ctx.sleep("z", 5)

    async def new(ctx: Any) -> Any:
        for number in range(2):
            async for it in ctx.loop("l"):
                await it.step("s", echo)
                if number == 1:
                    await it.step("t", echo)
                break

    assert told(drive(old).deploy(new, removed={"z": "sleep"})) == (
        "the code calls step 'l#2/~0/t', which is not in the history, inside something that the history holds as "
        "finished: gate it with ctx.get_version, or restore the code"
    )


def test_a_call_left_without_await_when_an_error_ended_its_scope(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        async def x(b: Any) -> Any:
            b.sleep("left", 60)
            raise KeyError("k")

        await ctx.try_block("t", lambda b: b.join("j", x=x))
        await ctx.sleep("z", 5)

    async def new(ctx: Any) -> Any:
        await ctx.try_block("t", lambda b: b.join("j", x=lambda c: c.sleep("left", 60)))

    assert told(drive(old).deploy(new)) == (
        "sleep 'left' (entry 3) was left without await when an error ended its scope, so it has no result, and is "
        "awaited now: restore the code, or replay_from an entry before it"
    )


# -- used as it cannot be ----------------------------------------------------------------------------


async def second_call(ctx: Any) -> None:
    ctx.step("first", echo)
    await ctx.step("second", echo)


async def left_at_the_end(ctx: Any) -> None:
    ctx.sleep("left", 5)


async def left_in_a_branch(ctx: Any) -> None:
    async def x(b: Any) -> None:
        b.sleep("left", 5)

    await ctx.join("j", x=x)


async def outer_in_a_loop(ctx: Any) -> None:
    async for _ in ctx.loop("l"):
        await ctx.step("s", echo)


async def over(ctx: Any) -> None:
    kept = []

    async def x(b: Any) -> None:
        kept.append(b)

    await ctx.join("j", x=x)
    await kept[0].step("late", echo)


async def lost(ctx: Any) -> None:
    kept = []

    async def slow(b: Any) -> None:
        kept.append(b)
        await b.sleep("z", 5)

    await ctx.race("r", slow=slow, quick=step("s"))
    await kept[0].queue.next("late")


async def awaited_twice(ctx: Any) -> None:
    call = ctx.step("s", echo)
    await call
    await call


async def outer_random(ctx: Any) -> None:
    async for _ in ctx.loop("l"):
        ctx.uuid4()


async def outer_random_in_a_branch(ctx: Any) -> None:
    async def x(_b: Any) -> float:
        return float(ctx.random.random())

    await ctx.join("j", x=x)


async def twice(ctx: Any) -> None:
    await ctx.rollback_checkpoint("cp")
    await ctx.rollback_checkpoint("cp")


async def repeated(ctx: Any) -> None:
    await ctx.step("s", echo)
    await ctx.step("s", echo)


async def no_checkpoint(ctx: Any) -> None:
    await ctx.step("s", echo, rollback=echo)


async def idle(ctx: Any) -> None:
    async for _ in ctx.loop("l"):
        pass


async def crowded(ctx: Any) -> None:
    for number in range(9):
        await ctx.step(f"s{number}", echo)


async def foreign(ctx: Any) -> None:
    class Foreign:
        def __await__(self) -> Any:
            yield self

    await Foreign()


async def foreign_call(ctx: Any) -> None:
    call = ctx.sleep("z", 5)
    await ctx.join("j", x=lambda b: call)


async def body_gives_nothing(ctx: Any) -> None:
    async def body(it: Any, state: int) -> None:
        await it.step("s", echo)

    await ctx.loop("l", body, state=0)


async def body_gives_another(ctx: Any) -> None:
    async def body(it: Any) -> int:
        return 7

    await ctx.loop("l", body)


async def native_awaited(ctx: Any) -> None:
    await ctx.loop("l")


async def native_twice(ctx: Any) -> None:
    loop = ctx.loop("l")
    async for _ in loop:
        break
    async for _ in loop:
        break


async def not_async(ctx: Any) -> None:
    def plain(_b: Any) -> int:
        return 1

    await ctx.join("j", x=plain)


async def not_completable(ctx: Any) -> None:
    await ctx.queue.send("m", 1)
    message = await ctx.queue.next("m")
    await message.complete("no")


async def state_that_cannot_be_stored(ctx: Any) -> None:
    await ctx.loop("l", lambda it, state: it.step("s", echo), state=object())


async def next_state_that_cannot_be_stored(ctx: Any) -> None:
    async def body(it: Any, state: int) -> Loop:
        return Loop.next(object())

    await ctx.loop("l", body, state=1)


async def loop_result_that_cannot_be_stored(ctx: Any) -> None:
    async def body(it: Any) -> Loop:
        return Loop.stop(object())

    await ctx.loop("l", body)


OUTER = "use the context that"


@pytest.mark.parametrize(
    ("code", "options", "text"),
    [
        (
            second_call,
            {},
            "step 'second' was called while step 'first' on the same context is unfinished. Is an await missing "
            "before step 'first'? Branches of a join, race or map must use their own context",
        ),
        (left_at_the_end, {}, "run ended while sleep 'left' is unfinished: is an await missing before it?"),
        (left_in_a_branch, {}, "j/x ended while sleep 'left' is unfinished: is an await missing before it?"),
        (
            outer_in_a_loop,
            {},
            "step 's' was called on the outer context inside the body of loop 'l': use the context that the loop "
            "gives to each iteration",
        ),
        (
            over,
            {},
            "step 'late' was called on a context whose j/x is over: inside a loop, branch or block use the context "
            "that was handed to it",
        ),
        (
            lost,
            {},
            "message 'late' was called on a context whose r/slow is over: inside a loop, branch or block use the "
            "context that was handed to it",
        ),
        (awaited_twice, {}, "step 's' was awaited twice: call it again instead"),
        (
            outer_random,
            {},
            "ctx.uuid4() was used on the outer context inside the body of a loop, branch or block: use the context "
            "that was handed to it",
        ),
        (
            outer_random_in_a_branch,
            {},
            "ctx.random was used on the outer context inside the body of a loop, branch or block: use the context "
            "that was handed to it",
        ),
        (twice, {}, "duplicate entry name: cp is used a second time (as rollback_checkpoint)"),
        (
            repeated,
            {"unique_names": True},
            "duplicate entry name: s is used a second time (as step); the actor says unique_names=True",
        ),
        (
            no_checkpoint,
            {},
            "step 's' has a rollback handler and no checkpoint was set before it: await "
            "ctx.rollback_checkpoint(name) first, in this scope or one around it",
        ),
        (
            idle,
            {"limits": Limits(max_idle_iterations=7)},
            "loop 'l' turned 8 times without a single recorded call: it would hold its worker for ever. Use a plain "
            "Python loop for pure computation, or put the work into a step",
        ),
        (
            crowded,
            {"limits": Limits(max_scope_entries=4)},
            "run has made 4 entries, the most one scope may hold (MAX_SCOPE_ENTRIES): use ctx.loop, whose finished "
            "iterations are pruned, or ctx.map",
        ),
        (
            foreign,
            {},
            "run awaited Foreign object, which is not a call on the context of its own branch. Only ctx calls may be "
            "awaited in run (ctx.sleep for asyncio.sleep); await everything else inside a step",
        ),
        (
            body_gives_nothing,
            {},
            "the body of loop 'l' has a state and returned None: return Loop.next(state)",
        ),
        (
            body_gives_another,
            {},
            "the body of loop 'l' must return Loop.next(…), Loop.stop(…) or None, not 7",
        ),
        (
            native_awaited,
            {},
            "loop 'l' has no body: write \"async for it in ctx.loop('l'):\", or pass one",
        ),
        (native_twice, {}, "loop 'l' was already iterated: call ctx.loop again"),
        (
            not_async,
            {},
            "join 'j': failed branches: x: TypeError: not_async.<locals>.plain must be an async function (async "
            "def), it returned int",
        ),
        (
            not_completable,
            {},
            "message 1 of queue 'm' was not received with completable=True and cannot be completed",
        ),
    ],
)
def test_code_that_cannot_be_is_told_what_to_do(
    drive: Drive, code: Any, options: dict[str, Any], text: str
) -> None:
    assert told(drive(code, **options)) == text


async def foreign_in_a_helper(ctx: Any) -> None:
    async def helper() -> None:
        await foreign(ctx)

    await helper()


async def asyncio_in_run(ctx: Any) -> None:
    await asyncio.sleep(1)


async def state_in_run(ctx: Any) -> None:
    ctx.state["n"] = 1


def line_of(text: str, function: Callable[..., Any]) -> str:
    lines, first = inspect.getsourcelines(function)
    number = next(number for number, line in enumerate(lines, first) if text in line)
    return f" (at {inspect.getsourcefile(function)}:{number})"


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (renamed, '"new"'),
        (renamed_in_a_branch, "x=lambda"),
        (another_kind, "sleep"),
        (other_arguments, '"x"'),
        (removed_as_another, "removed("),
        (other_branches, "it.join"),
    ],
)
def test_br_055_a_divergence_names_the_line_of_the_call(drive: Drive, code: Any, call: str) -> None:
    assert told_with_line(drive(recorded).deploy(code)).endswith(line_of(call, code))


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (second_call, '"second"'),
        (outer_in_a_loop, "step"),
        (lost, "late"),
        (outer_random_in_a_branch, "random()"),
        (no_checkpoint, "step"),
        (foreign, "await Foreign"),
        (foreign_call, "await ctx.join"),
        (asyncio_in_run, "sleep"),
        (state_in_run, "state["),
    ],
)
def test_a_refusal_names_the_line_of_the_call(drive: Drive, code: Any, call: str) -> None:
    assert told_with_line(drive(code)).endswith(line_of(call, code))


def test_a_refusal_names_the_innermost_line_that_waits(drive: Drive) -> None:
    assert told_with_line(drive(foreign_in_a_helper)).endswith(line_of("await Foreign", foreign))


def test_code_of_no_module_has_lines_too(drive: Drive) -> None:
    names: dict[str, Any] = {}
    exec(compile("async def run(ctx):\n    ctx.state", "shop.py", "exec"), names)
    assert told_with_line(drive(names["run"])).endswith(" (at shop.py:2)")


def test_what_no_line_calls_is_told_without_one(drive: Drive) -> None:
    assert told_with_line(drive(recorded).deploy(ended)) == told(drive(recorded).deploy(ended))
    assert told_with_line(drive(left_at_the_end)) == told(drive(left_at_the_end))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (state_that_cannot_be_stored, "state of loop 'l'"),
        (next_state_that_cannot_be_stored, "state of loop 'l'"),
        (loop_result_that_cannot_be_stored, "result of loop 'l'"),
    ],
)
def test_a_value_that_cannot_be_stored_is_told_by_its_place(drive: Drive, code: Any, text: str) -> None:
    driver = drive(code)
    assert driver.error.error.is_a(SerializationError.__name__)
    assert text in told(driver)
