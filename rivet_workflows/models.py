"""The tables. Nothing but columns: every query and every rule about them lives in ``store/``.

Layout, and what was measured to choose it:

* A hot row per actor, ``rivet_run``, is apart from the cold ``rivet_actor`` and carries no index on a column
  that a commit changes: of 32,320 updates 32,164 were heap-only (PostgreSQL 15, fillfactor 70).
* ``rivet_history`` gets a row when a call is *finished*; open calls live in ``rivet_run.inflight``, which
  every commit writes anyway (insert at start and update at end made 12,000 rows/s, insert when done 20,000).
* Wakes are rows of ``rivet_timer`` of their own: a sender never touches the receiver's row.
* No foreign keys in the database: a referencing insert would lock the actor's row until the sender commits.
* Points in time are ``bigint`` microseconds since the epoch, UTC: exact, alike in three databases, and
  indifferent to ``USE_TZ``. Values are texts, encoded by the codec; the database never looks inside.
"""
# ruff: noqa: DJ001, RUF012  NULL means "there is none", which an encoded text cannot say: "" is never a value.

from __future__ import annotations

import os
import time
from uuid import UUID

from django.db import models
from django.db.models import Q

from rivet_workflows.records import MAX_NAME, MAX_SCOPE


def uuid7() -> UUID:
    """A UUID that begins with the time: new rows land at the index's end, and what one process makes sorts by birth.

    48 bits of milliseconds, 12 of the fraction within one (RFC 9562, method 3: steps of a quarter microsecond), and
    62 random ones.
    """
    millis, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000
    random = int.from_bytes(os.urandom(8), "big") & (1 << 62) - 1
    return UUID(int=(millis & (1 << 48) - 1) << 80 | 7 << 76 | fraction << 64 | 2 << 62 | random)


class Actor(models.Model):
    """Who an actor is and how its run ended. Written at birth and at the end."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=64)
    #: JSON list of the key's parts, ASCII.
    key = models.TextField()
    #: sha256 of name and key; NULL once destroyed, so that the key is free again (a hash, because MariaDB's
    #: collations would take ``Order-1`` and ``order-1`` for one, and cannot index a text).
    live_hash = models.CharField(max_length=64, null=True)
    lifecycle = models.SmallIntegerField()
    created_at = models.BigIntegerField()
    finished_at = models.BigIntegerField(null=True)
    destroyed_at = models.BigIntegerField(null=True)
    #: When the run ended, for as long as its history, messages and events have not been pruned since.
    unpruned_since = models.BigIntegerField(null=True)
    input = models.TextField(null=True)
    output = models.TextField(null=True)
    error = models.TextField(null=True)
    parent_id = models.UUIDField(null=True)
    labels = models.TextField(default="")

    class Meta:
        db_table = "rivet_actor"
        constraints = [
            # Not unique=True: Django would add a second index on PostgreSQL, for LIKE.
            models.UniqueConstraint(fields=["live_hash"], name="rivet_actor_live"),
        ]
        indexes = [
            models.Index(fields=["name", "lifecycle", "id"], name="rivet_actor_list"),
            models.Index(fields=["name", "id"], name="rivet_actor_name"),
            # For "all that failed", of whatever type: few among very many.
            models.Index(fields=["lifecycle", "id"], name="rivet_actor_lifecycle"),
            models.Index(fields=["name", "finished_at"], name="rivet_actor_retain"),
            models.Index(fields=["unpruned_since"], name="rivet_actor_unpruned"),
            models.Index(fields=["destroyed_at"], name="rivet_actor_destroyed"),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.key}"


class Run(models.Model):
    """Where an actor's run stands, and whose it is. The one row that every commit updates."""

    actor_id = models.UUIDField(primary_key=True)
    #: Hash of the actor's name, see ``store.types``.
    type_id = models.BigIntegerField()
    owner_id = models.BigIntegerField(null=True)
    #: Raised with each change of owner and by each control operation: the fence.
    epoch = models.IntegerField(default=0)
    #: Raised by each commit: a repeated one writes nothing.
    commit_no = models.BigIntegerField(default=0)
    next_seq = models.BigIntegerField(default=1)
    event_seq = models.BigIntegerField(default=0)
    #: Entries that are not finished; ``records.dump_open``.
    inflight = models.TextField(default="")
    #: ``records.Blocked``.
    blocked = models.SmallIntegerField(default=0)
    #: Hash of the code that refused the history.
    blocked_code = models.CharField(max_length=64, default="")
    #: Hash of the code of the worker that holds or last held it.
    code = models.CharField(max_length=64, default="")
    #: Format of history and inflight; a worker takes up none newer than it knows.
    format = models.SmallIntegerField(default=1)

    class Meta:
        db_table = "rivet_run"
        indexes = [
            models.Index(fields=["owner_id"], name="rivet_run_owner", condition=Q(owner_id__isnull=False)),
        ]

    def __str__(self) -> str:
        return str(self.actor_id)


class State(models.Model):
    """An actor's state, and the lock of its actions (which therefore never meet a worker's commits)."""

    actor_id = models.UUIDField(primary_key=True)
    version = models.IntegerField(default=1)
    body = models.TextField(null=True)

    class Meta:
        db_table = "rivet_state"

    def __str__(self) -> str:
        return f"{self.actor_id} version {self.version}"


class History(models.Model):
    """A finished entry: ``records.Entry``. Removed only by pruning and control operations."""

    pk = models.CompositePrimaryKey("actor_id", "seq")
    actor_id = models.UUIDField()
    seq = models.BigIntegerField()
    scope = models.CharField(max_length=MAX_SCOPE)
    name = models.CharField(max_length=MAX_NAME)
    kind = models.SmallIntegerField()
    occurrence = models.IntegerField()
    status = models.SmallIntegerField()
    started_at = models.BigIntegerField()
    done_seq = models.BigIntegerField(null=True)
    done_at = models.BigIntegerField(null=True)
    input = models.TextField(null=True)
    input_hash = models.CharField(max_length=64, null=True)
    output = models.TextField(null=True)
    error = models.TextField(null=True)
    attempts = models.TextField(null=True)
    rollback = models.TextField(null=True)
    rolled_back_at = models.BigIntegerField(null=True)

    class Meta:
        db_table = "rivet_history"
        indexes = [models.Index(fields=["actor_id", "scope"], name="rivet_history_scope")]

    def __str__(self) -> str:
        return f"{self.actor_id} {self.seq} {self.name}"


class Message(models.Model):
    """A message that waits in a queue, or that an entry holds until it is completed. Deleted when taken."""

    id = models.BigAutoField(primary_key=True)
    actor_id = models.UUIDField()
    queue = models.CharField(max_length=128)
    body = models.TextField()
    sent_at = models.BigIntegerField()
    visible_at = models.BigIntegerField()
    holder_seq = models.BigIntegerField(null=True)
    wants_reply = models.BooleanField(default=False)

    class Meta:
        db_table = "rivet_message"
        # Per queue: with (actor_id, id) a wait for `control` would scan a million messages of `work`. SQLite and
        # InnoDB have the primary key behind every index; on PostgreSQL the migration adds it as (id + 0).
        indexes = [models.Index(fields=["actor_id", "queue"], name="rivet_message_queue")]

    def __str__(self) -> str:
        return f"{self.id} {self.queue}"


class Reply(models.Model):
    """The answer to a message whose sender waits."""

    message_id = models.BigIntegerField(primary_key=True)
    actor_id = models.UUIDField()
    status = models.SmallIntegerField()
    body = models.TextField(null=True)
    expires_at = models.BigIntegerField(db_index=True)

    class Meta:
        db_table = "rivet_reply"

    def __str__(self) -> str:
        return f"reply to {self.message_id}"


class Dedupe(models.Model):
    """A key that was sent already. Apart from the messages, so that taking one is a plain delete."""

    pk = models.CompositePrimaryKey("actor_id", "key_hash")
    actor_id = models.UUIDField()
    key_hash = models.CharField(max_length=64)
    message_id = models.BigIntegerField()
    expires_at = models.BigIntegerField(db_index=True)
    #: Of a call that must happen once: its encoded result.
    result = models.TextField(null=True)

    class Meta:
        db_table = "rivet_dedupe"

    def __str__(self) -> str:
        return f"{self.actor_id} {self.key_hash}"


class Timer(models.Model):
    """A wake: from ``due`` on a worker should take the actor up. A row each, never updated."""

    id = models.BigAutoField(primary_key=True)
    type_id = models.BigIntegerField()
    actor_id = models.UUIDField()
    kind = models.SmallIntegerField()
    due = models.BigIntegerField()
    # Room for flow control: the claim orders by due alone today.
    priority = models.SmallIntegerField(default=0)
    lane = models.CharField(max_length=64, null=True)

    class Meta:
        db_table = "rivet_timer"
        indexes = [
            # By type first: wakes of actors that no running worker has code for cannot clog the head. No column
            # is in two indexes: for a plan made of an empty table they would be alike.
            models.Index(fields=["type_id", "due"], name="rivet_timer_due"),
            models.Index(fields=["actor_id"], name="rivet_timer_actor"),
        ]

    def __str__(self) -> str:
        return f"{self.actor_id} due {self.due}"


class Waiter(models.Model):
    """A workflow that waits for the end of another (``ctx.child``). The commit that ends the child wakes it."""

    pk = models.CompositePrimaryKey("child_id", "parent_id")
    child_id = models.UUIDField()
    parent_id = models.UUIDField()

    class Meta:
        db_table = "rivet_waiter"
        # For a parent that is destroyed.
        indexes = [models.Index(fields=["parent_id"], name="rivet_waiter_parent")]

    def __str__(self) -> str:
        return f"{self.parent_id} waits for {self.child_id}"


class Event(models.Model):
    """What an actor broadcast. ``seq`` is taken under the run row's lock: commit order is its order."""

    pk = models.CompositePrimaryKey("actor_id", "seq")
    actor_id = models.UUIDField()
    seq = models.BigIntegerField()
    name = models.CharField(max_length=128)
    payload = models.TextField()
    created_at = models.BigIntegerField()

    class Meta:
        db_table = "rivet_event"

    def __str__(self) -> str:
        return f"{self.actor_id} {self.seq} {self.name}"


class Schedule(models.Model):
    """An action to call at a time, or again and again. Found by its time: a worker asks for what is due."""

    id = models.UUIDField(primary_key=True, editable=False)
    type_id = models.BigIntegerField()
    actor_id = models.UUIDField()
    #: Of a recurring one; one-shots have none.
    name = models.CharField(max_length=128, null=True)
    kind = models.SmallIntegerField()
    action = models.CharField(max_length=255)
    args = models.TextField(default="")
    rule = models.TextField(default="")
    timezone = models.CharField(max_length=64, default="")
    next_at = models.BigIntegerField(null=True)
    last_at = models.BigIntegerField(null=True)
    max_history = models.IntegerField(default=0)

    class Meta:
        db_table = "rivet_schedule"
        constraints = [
            models.UniqueConstraint(fields=["actor_id", "name"], name="rivet_schedule_name"),
        ]
        indexes = [
            models.Index(fields=["type_id", "next_at", "id"], name="rivet_schedule_due"),
            # In an actor's own order: for its list, and to see whether an earlier one is not done yet.
            models.Index(fields=["actor_id", "next_at", "id"], name="rivet_schedule_actor"),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.action}"


class Fire(models.Model):
    """One time that a recurring schedule fired. By the actor and the name, as it may outlive its schedule."""

    id = models.BigAutoField(primary_key=True)
    actor_id = models.UUIDField()
    name = models.CharField(max_length=128)
    action = models.CharField(max_length=255, default="")
    scheduled_at = models.BigIntegerField()
    fired_at = models.BigIntegerField()
    finished_at = models.BigIntegerField(null=True)
    result = models.SmallIntegerField()
    error = models.TextField(null=True)
    #: While it runs: where. What runs on a worker that died was interrupted.
    worker_id = models.BigIntegerField(null=True, db_index=True)

    class Meta:
        db_table = "rivet_fire"
        indexes = [models.Index(fields=["actor_id", "name", "id"], name="rivet_fire_name")]

    def __str__(self) -> str:
        return f"{self.actor_id} {self.name} at {self.scheduled_at}"


class Call(models.Model):
    """An action to be run where a worker holds the actor, for a caller in another process, and its answer."""

    id = models.BigAutoField(primary_key=True)
    type_id = models.BigIntegerField()
    actor_id = models.UUIDField()
    action = models.CharField(max_length=255)
    args = models.TextField()
    #: Primary key of the signed-in user who called, encoded.
    user = models.TextField(null=True)
    #: Somebody waits for the answer.
    waits = models.BooleanField(default=True)
    #: ``records.CallStatus``.
    status = models.SmallIntegerField()
    #: Where it runs.
    worker_id = models.BigIntegerField(null=True, db_index=True)
    #: It must be answered by then; what is left of it afterwards is pruned.
    until = models.BigIntegerField(db_index=True)
    #: Hash of the key under which it must happen once.
    once = models.CharField(max_length=64, null=True)
    answer = models.TextField(null=True)

    class Meta:
        db_table = "rivet_call"
        indexes = [
            models.Index(fields=["type_id", "status"], name="rivet_call_type"),
            models.Index(fields=["actor_id"], name="rivet_call_actor"),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.action}"


class Worker(models.Model):
    """A running worker process: a fresh row each start, its heartbeat the proof that it lives."""

    id = models.BigAutoField(primary_key=True)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    started_at = models.BigIntegerField()
    heartbeat_at = models.BigIntegerField()
    draining = models.BooleanField(default=False)
    #: JSON object: actor name to the hash of its workflow's code.
    codes = models.TextField(default="")
    format = models.SmallIntegerField(default=1)

    class Meta:
        db_table = "rivet_worker"

    def __str__(self) -> str:
        return f"{self.id} {self.host}:{self.pid}"
