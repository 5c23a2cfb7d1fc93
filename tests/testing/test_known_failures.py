"""What users of other engines met, of workflows: see ``tests/known_failures.md``."""

from __future__ import annotations

import pytest

from rivet_workflows import Actor, StepFailed


def test_br_065_many_branches_whose_timers_are_due_together_go_on_together(rivet):
    class Sleepers(Actor):
        async def run(self, ctx):
            return sum(await ctx.map("all", nap, list(range(500))))

    async def nap(branch, n):
        await branch.sleep("nap", 3600)
        return n

    sleepers = rivet.client.create(Sleepers)
    rivet.run_until_idle()
    rivet.advance(hours=1)
    assert sleepers.result(timeout=0) == sum(range(500))
    naps = {entry.done_at for entry in rivet.history(sleepers) if entry.kind == "sleep"}
    assert len(naps) == 1


def test_br_095_a_result_that_is_too_large_is_no_passing_trouble(rivet):
    ran = []

    class Large(Actor):
        async def run(self, ctx):
            await ctx.step("large", large)

    def large(step):
        ran.append(step.attempt)
        return "x" * 2_000_000

    handle = rivet.client.create(Large)
    with pytest.raises(
        StepFailed, match=r'result of step "large" has 2,000,002 bytes.*MAX_PAYLOAD'
    ) as caught:
        handle.result()
    assert caught.value.step_name == "large"
    assert ran == [1]
