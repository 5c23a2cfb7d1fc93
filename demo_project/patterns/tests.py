"""Every pattern does what its docstring says, also when it is replayed after each commit (the kit's default)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from patterns.basics import Crawl, Export, Feed, Hours, Import, Payroll, Thermostat, Welcome
from patterns.clock import Backup, Digest, Printer, closed_lines
from patterns.failures import Account, Avatar, Door, Shipment, Sync, Transfer, Trip
from patterns.messages import (
    Conveyor,
    Expense,
    Freight,
    Meter,
    Purchase,
    Quote,
    QuoteRequest,
    Resizer,
    Scanner,
    Upload,
    Verdict,
)
from patterns.timers import Build, Rates, RateSource, Transcript, Trial
from patterns.together import (
    Auction,
    Consignment,
    Dashboard,
    Desk,
    Dispatcher,
    Parcel,
    Supplier,
    Task,
    Tender,
    WordCount,
)
from patterns.versions import Billing, Onboarding, tick_off, write_invoice
from rivet_workflows import StepExhausted, StepFailed


def finished(rivet: Any, actor: Any) -> Any:
    rivet.run_until_idle()
    return actor.result()


# -- basics


def test_welcome_goes_through_its_steps(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Welcome, "ada")
    assert finished(rivet, actor) == "account-ada"
    assert actor.get_state().mailed
    assert [entry.name for entry in actor.history()] == ["create_account", "send_welcome_mail"]


@pytest.mark.parametrize("moment", ["before", "after_run", "after_commit"])
def test_welcome_survives_a_crash(rivet: Any, moment: str) -> None:
    actor = rivet.client.get_or_create(Welcome, "ada")
    rivet.crash_at("send_welcome_mail", moment)
    assert finished(rivet, actor) == "account-ada"


def test_thermostat_handles_one_reading_per_turn(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Thermostat, "hall")
    for celsius in (21.0, 20.0, 18.5):
        actor.send("readings", celsius)
    rivet.run_until_idle()
    assert (actor.get_state().readings, actor.get_state().heating) == (3, True)
    assert actor.status().state == "sleeping"


def test_crawl_hands_its_cursor_on(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Crawl, "insects")
    assert finished(rivet, actor) == 3
    assert actor.get_state().titles == ["Ants", "Bees", "Crickets"]


def test_export_opens_and_closes(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Export, "may")
    rivet.run_until_idle()
    assert actor.get_state().opened
    for command in ("one", "two", "finish", "never written"):
        actor.send("commands", command)
    assert finished(rivet, actor) == 2
    assert not actor.get_state().opened


def test_feed_has_its_connection_again_after_a_crash(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Feed, "prices")
    actor.send("ticks", "1")
    rivet.run_until_idle()
    rivet.crash()
    actor.send("ticks", "2")
    rivet.run_until_idle()
    assert actor.get_state().ticks == 2


def test_import_tells_its_progress(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Import, "people", input=["a", "b", "c"])
    assert finished(rivet, actor) == 3
    told = [(event.payload.done, event.payload.total) for event in rivet.events(actor)]
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_payroll_pays_what_it_worked_out(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Payroll, "june")
    actor.send(Payroll.hours, Hours("ada", 10))
    actor.send(Payroll.hours, Hours("bob", 2))
    rivet.crash_at("pay", "before")
    rivet.run_until_idle()
    assert actor.get_state().paid == {"ada": 42_000, "bob": 8_400}


# -- messages


def test_scanner_scans_each_upload_once(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Scanner, "inbox")
    for name in ("a.png", "b.png"):
        actor.send(Scanner.uploads, Upload(name, 10))
    rivet.crash_at("scan", "after_commit")
    rivet.run_until_idle()
    assert actor.get_state().scanned == ["a.png", "b.png"]
    assert actor.get_state().bytes == 20


def test_freight_answers(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Freight, "sea")
    sent = actor.send(Freight.requests, QuoteRequest(weight=4), wait=True, timeout=5)
    assert (sent.status, sent.response) == ("completed", Quote(price=600))


def test_purchase_asks_once_and_goes_on_with_the_answer(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Purchase, "chairs", input=4)
    rivet.crash_at("ask_for_quote", "after_run")
    assert finished(rivet, actor) == 10_600
    assert rivet.client.get(Freight, "sea").get_state().quotes == 1


def test_meter_takes_what_is_there_in_one_step(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Meter, "water")
    for value in range(250):
        actor.send("readings", value)
    rivet.run_until_idle()
    state = actor.get_state()
    assert (state.readings, state.total, state.batches) == (250, sum(range(250)), 3)


def test_resizer_bounds_its_rounds(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Resizer, "album")
    for number in range(25):
        actor.send("images", f"{number}.png")
    rivet.run_until_idle()
    assert (actor.get_state().resized, actor.get_state().largest_round) == (25, 10)


def test_conveyor_can_be_paused_resumed_and_stopped(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Conveyor, "north")
    actor.send("parcels", "a")
    rivet.run_until_idle()
    actor.send("control", "pause")
    rivet.run_until_idle()
    actor.send("parcels", "b")
    rivet.run_until_idle()
    assert (actor.get_state().mode, actor.get_state().moved) == ("paused", ["a"])
    actor.send("control", "resume")
    rivet.run_until_idle()
    assert actor.get_state().moved == ["a", "b"]
    actor.send("control", "stop")
    finished(rivet, actor)
    assert actor.get_state().mode == "stopped"


@pytest.mark.parametrize(("approved", "status"), [(True, "paid out"), (False, "refused")])
def test_expense_does_as_it_is_told(rivet: Any, approved: bool, status: str) -> None:
    actor = rivet.client.get_or_create(Expense, "taxi")
    rivet.advance(hours=71)
    actor.send(Expense.verdicts, Verdict(approved, by="eve"))
    assert finished(rivet, actor) == status
    assert actor.get_state().decided_by == "eve"


def test_expense_expires_when_nobody_decides(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Expense, "taxi")
    rivet.advance(hours=73)
    assert actor.result() == "expired"


def test_expense_can_be_withdrawn(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Expense, "taxi")
    actor.withdraw()
    assert finished(rivet, actor) == "refused"


# -- timers


def test_trial_takes_two_weeks(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Trial, "ada")
    rivet.run_until_idle()
    assert actor.get_state().mails == ["welcome"]
    rivet.advance(days=10)
    assert actor.get_state().mails[1:] == ["four days left"]
    rivet.crash()
    rivet.jump(days=30)
    assert actor.get_state().mails[2:] == ["the trial is over"]


def test_transcript_tries_again_after_a_timeout(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Transcript, "meeting")
    rivet.time_out_step("transcribe")
    actor.send("recordings", "hello")
    rivet.run_until_idle()
    rivet.advance(seconds=10)
    assert actor.get_state().text == "HELLO"


def test_rates_are_live_when_the_source_answers(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Rates, "today")
    assert finished(rivet, actor) == "live"
    assert actor.get_state().rate == 1.08


def test_rates_fall_back_in_time(rivet: Any) -> None:
    rivet.client.get_or_create(RateSource, "live").set(1.08, in_order=False)
    rivet.client.get_or_create(RateSource, "yesterday").set(1.05)
    actor = rivet.client.get_or_create(Rates, "today")
    rivet.advance(seconds=4)
    assert actor.result() == "yesterday"
    assert actor.get_state().rate == 1.05


def test_build_asks_more_and_more_rarely(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Build, "main")
    rivet.run_until_idle()
    began = rivet.now()
    while actor.status().state == "sleeping":
        rivet.advance(seconds=1)
    assert actor.result() == 4
    assert rivet.now() - began == timedelta(seconds=1 + 2 + 4)


# -- together


def test_dashboard_joins_its_figures(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Dashboard, "today")
    rivet.advance(seconds=2)
    assert actor.result() == {"visits": 120, "sales": 7} == actor.get_state().figures


def test_auction_sells_to_the_first_offer(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Auction, "vase")
    rivet.advance(hours=23)
    actor.send("offers", 300)
    assert finished(rivet, actor) == "sold for 300"


def test_auction_ends_without_an_offer(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Auction, "vase")
    rivet.advance(hours=24)
    assert actor.result() == "not sold"


def test_word_count_adds_up(rivet: Any) -> None:
    texts = ["one two", "three", "four five six"]
    assert finished(rivet, rivet.client.get_or_create(WordCount, "book", input=texts)) == 6
    assert finished(rivet, rivet.client.get_or_create(WordCount, "empty", input=[])) == 0


def test_tender_asks_everybody_once(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Tender, "table")
    rivet.crash_at("ask_supplier", "after_run")
    assert finished(rivet, actor) == "west"
    assert set(actor.get_state().prices) == set(Tender.suppliers)
    asked = [rivet.client.get(Supplier, name).price("x") for name in Tender.suppliers]
    assert asked == [105, 105, 104]


def test_dispatcher_hands_out_tasks(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Dispatcher, "front")
    actor.send(Dispatcher.tasks, Task("stamp", "two"))
    rivet.run_until_idle()
    assert actor.get_state().results == ["stamp done at two"]
    assert rivet.client.get(Desk, "two").handle("more") == "more done at two"


def test_consignment_waits_for_its_parcels(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Consignment, "may", input=["books", "lamps"])
    rivet.run_until_idle()
    assert rivet.client.get(Parcel, ("may", "books")).get_state().status == "labelled"
    rivet.crash()
    rivet.advance(days=2)
    assert actor.result() == ["books delivered", "lamps delivered"] == actor.get_state().delivered


# -- failures


def test_avatar_makes_do_with_initials(rivet: Any) -> None:
    assert finished(rivet, rivet.client.get_or_create(Avatar, "ada")) == "picture of ada"
    actor = rivet.client.get_or_create(Avatar, "nobody")
    rivet.advance(seconds=1)
    assert actor.result() == "initials"
    assert actor.get_state().reason == "no picture of nobody"


def test_door_opens_with_the_key(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Door, "front")
    assert finished(rivet, actor) == "key"


@pytest.mark.parametrize(("key", "how"), [("chair", "by air"), ("piano", "by ship, as load_plane failed")])
def test_shipment_finds_a_way(rivet: Any, key: str, how: str) -> None:
    assert finished(rivet, rivet.client.get_or_create(Shipment, key)) == how


def test_trip_is_undone_last_first(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Trip, "broke")
    rivet.run_until_idle()
    with pytest.raises(StepFailed, match="the account is empty"):
        actor.result()
    assert actor.get_state().booked == []


def test_trip_that_is_paid_stays_booked(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Trip, "rich")
    finished(rivet, actor)
    assert actor.get_state().booked == ["train", "hotel"]


def test_transfer_moves_money_or_none(rivet: Any) -> None:
    good = {"source": "ada", "target": "bob", "amount": 30}
    finished(rivet, rivet.client.get_or_create(Transfer, 1, input=good))
    assert rivet.client.get(Account, "ada").balance() == 70
    assert rivet.client.get(Account, "bob").balance() == 130
    bad = rivet.client.get_or_create(Transfer, 2, input=good | {"target": "frozen"})
    rivet.run_until_idle()
    with pytest.raises(StepFailed):
        bad.result()
    assert rivet.client.get(Account, "ada").balance() == 70
    assert bad.get_state().status == "undone"


def test_sync_hears_of_its_failure(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Sync, "all")
    rivet.run_until_idle()
    rivet.advance(seconds=1)
    with pytest.raises(StepExhausted):
        actor.result()
    assert actor.get_state().alarms == 1
    assert "the other side is down" in actor.get_state().last_error
    assert [event.payload for event in rivet.events(actor)] == ["the other side is down"]


# -- versions


async def with_a_fax(self: Any, ctx: Any) -> None:
    """The code before the change."""
    await ctx.step("collect-papers", tick_off, "papers")
    await ctx.step("fax-contract", tick_off, "fax")
    await ctx.queue.next("wait-signature", names=[Onboarding.signatures])


def test_onboarding_goes_on_where_old_code_had_a_fax(rivet: Any) -> None:
    as_it_is = Onboarding.run
    rivet.deploy(Onboarding, run=with_a_fax)
    actor = rivet.client.get_or_create(Onboarding, "ada")
    rivet.run_until_idle()
    rivet.deploy(Onboarding, run=as_it_is)
    actor.send("signatures", "Ada")
    assert finished(rivet, actor) == ["papers", "fax", "filed online"]


def test_onboarding_from_scratch(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Onboarding, "bob")
    actor.send("signatures", "Bob")
    assert finished(rivet, actor) == ["papers", "filed online"]


def test_billing_bills_new_months_by_mail(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Billing, "acme")
    actor.send("months", "June")
    rivet.run_until_idle()
    assert actor.get_state().invoices == ["June by mail"]


async def on_paper_alone(self: Any, ctx: Any) -> None:
    """The code before the change."""
    async for turn in ctx.loop("months"):
        month = await turn.queue.next("wait-month", names=[Billing.months])
        await turn.step("bill", write_invoice, f"{month.body} on paper")
        await turn.sleep("post", 60)


def test_billing_finishes_the_month_that_it_began_on_paper(rivet: Any) -> None:
    as_it_is = Billing.run
    rivet.deploy(Billing, run=on_paper_alone)
    actor = rivet.client.get_or_create(Billing, "acme")
    actor.send("months", "June")
    rivet.run_until_idle()
    rivet.deploy(Billing, run=as_it_is)
    actor.send("months", "July")
    rivet.advance(seconds=61)
    rivet.run_until_idle()
    assert actor.get_state().invoices == ["June on paper", "July by mail"]


# -- clock


def test_digest_is_sent_at_nine_on_working_days(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Digest, "ada", input={"timezone": "Asia/Tokyo"})
    monday = datetime(rivet.now().year + 1, 6, 1, tzinfo=UTC)
    monday += timedelta(days=-monday.weekday() % 7)
    rivet.jump(monday - rivet.now())
    assert actor.get_state().mails == []
    actor.add("rain")
    rivet.advance(hours=1)  # Tokyo's nine o'clock is midnight in UTC: the next is tomorrow's
    actor.add("sun")
    rivet.advance(days=7)
    assert actor.get_state().mails == ["good morning: rain, sun"]
    assert len(actor.deliveries()) == 6
    assert set(actor.deliveries()) == {"ok"}


def test_digest_is_sent_once_for_all_that_was_missed_and_stops(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Digest, "bob")
    actor.add("rain")
    rivet.jump(days=30)
    assert actor.get_state().mails == ["good morning: rain"]
    assert actor.deliveries() == ["ok"]
    assert actor.unsubscribe()
    rivet.advance(days=30)
    assert actor.deliveries() == []


def test_backup_works_through_its_ticks(rivet: Any) -> None:
    actor = rivet.client.get_or_create(Backup, "db")
    began = rivet.now()
    rivet.crash_at("back_up", "before")
    rivet.advance(hours=3, minutes=5)
    assert actor.get_state().backups == 3
    assert actor.get_state().last == began + timedelta(hours=3)


def test_printer_opens_a_line_and_closes_it(rivet: Any) -> None:
    closed_lines.clear()
    actor = rivet.client.get_or_create(Printer, "hall")
    actor.send("jobs", "one")
    rivet.run_until_idle()
    rivet.evict()
    assert [(line.is_open, line.sent) for line in closed_lines] == [(False, ["one"])]
    actor.send("jobs", "two")
    rivet.run_until_idle()
    rivet.crash()  # nobody closes this one
    actor.send("jobs", "three")
    rivet.run_until_idle()
    rivet.evict()
    assert [line.sent for line in closed_lines] == [["one"], ["three"]]
    assert (actor.get_state().pages, actor.get_state().sessions) == (3, 3)
