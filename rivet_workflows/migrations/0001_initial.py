"""The tables, and what each database needs beside them. One migration for SQLite, PostgreSQL and MariaDB."""

from django.db import migrations, models

import rivet_workflows.models

#: Tables that are rewritten all the time: vacuumed and analysed after 1 % and a thousand rows, not after 20 %.
BUSY_TABLES = ("rivet_run", "rivet_state", "rivet_timer", "rivet_message", "rivet_history")
PAYLOADS = {
    "rivet_run": ["inflight"],
    "rivet_state": ["body"],
    "rivet_history": ["input", "output", "error", "attempts"],
    "rivet_message": ["body"],
    "rivet_event": ["payload"],
}
TABLES = (
    "rivet_actor",
    "rivet_run",
    "rivet_state",
    "rivet_history",
    "rivet_message",
    "rivet_reply",
    "rivet_dedupe",
    "rivet_timer",
    "rivet_event",
    "rivet_schedule",
    "rivet_fire",
    "rivet_worker",
    "rivet_waiter",
)


def tune_postgres(schema_editor):
    for table in BUSY_TABLES:
        schema_editor.execute(
            f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,"
            " autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000)"
        )
    # In the order of arrival within a queue. An expression, so that for a lookup by id the primary key is the only
    # index there is: queue-like tables are analysed while they are empty, when to the planner all indexes are alike.
    # In place of the plain one, which is still to be made: Django creates indexes when the migration ends.
    plain = [statement for statement in schema_editor.deferred_sql if "rivet_message_queue" in str(statement)]
    for statement in plain:
        schema_editor.deferred_sql.remove(statement)
    schema_editor.execute("CREATE INDEX rivet_message_queue ON rivet_message (actor_id, queue, (id + 0))")
    # Room on the page for the next version of the row: a commit's update then touches no index.
    schema_editor.execute("ALTER TABLE rivet_run SET (fillfactor = 70)")
    schema_editor.execute("ALTER TABLE rivet_state SET (fillfactor = 80)")
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)"
        )
        has_lz4 = cursor.fetchone() is not None
    if has_lz4:
        for table, columns in PAYLOADS.items():
            changes = ", ".join(f"ALTER COLUMN {column} SET COMPRESSION lz4" for column in columns)
            schema_editor.execute(f"ALTER TABLE {table} {changes}")


def tune_mysql(schema_editor):
    # The usual default compares without case and accents: queues `Work` and `work` would be one.
    with schema_editor.connection.cursor() as cursor:  # the editor refuses DDL in a migration's transaction
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")


def tune(apps, schema_editor):
    vendor = schema_editor.connection.vendor
    if vendor == "postgresql":
        tune_postgres(schema_editor)
    elif vendor == "mysql":
        tune_mysql(schema_editor)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Dedupe",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "actor_id", "key_hash", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("actor_id", models.UUIDField()),
                ("key_hash", models.CharField(max_length=64)),
                ("message_id", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField(db_index=True)),
                ("result", models.TextField(null=True)),
            ],
            options={
                "db_table": "rivet_dedupe",
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "actor_id", "seq", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("actor_id", models.UUIDField()),
                ("seq", models.BigIntegerField()),
                ("name", models.CharField(max_length=128)),
                ("payload", models.TextField()),
                ("created_at", models.BigIntegerField()),
            ],
            options={
                "db_table": "rivet_event",
            },
        ),
        migrations.CreateModel(
            name="Reply",
            fields=[
                ("message_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("actor_id", models.UUIDField()),
                ("status", models.SmallIntegerField()),
                ("body", models.TextField(null=True)),
                ("expires_at", models.BigIntegerField(db_index=True)),
            ],
            options={
                "db_table": "rivet_reply",
            },
        ),
        migrations.CreateModel(
            name="State",
            fields=[
                ("actor_id", models.UUIDField(primary_key=True, serialize=False)),
                ("version", models.IntegerField(default=1)),
                ("body", models.TextField(null=True)),
            ],
            options={
                "db_table": "rivet_state",
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("host", models.CharField(max_length=255)),
                ("pid", models.IntegerField()),
                ("started_at", models.BigIntegerField()),
                ("heartbeat_at", models.BigIntegerField()),
                ("draining", models.BooleanField(default=False)),
                ("codes", models.TextField(default="")),
                ("format", models.SmallIntegerField(default=1)),
            ],
            options={
                "db_table": "rivet_worker",
            },
        ),
        migrations.CreateModel(
            name="Actor",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=rivet_workflows.models.uuid7,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("name", models.CharField(max_length=64)),
                ("key", models.TextField()),
                ("live_hash", models.CharField(max_length=64, null=True)),
                ("lifecycle", models.SmallIntegerField()),
                ("created_at", models.BigIntegerField()),
                ("finished_at", models.BigIntegerField(null=True)),
                ("destroyed_at", models.BigIntegerField(null=True)),
                ("unpruned_since", models.BigIntegerField(null=True)),
                ("input", models.TextField(null=True)),
                ("output", models.TextField(null=True)),
                ("error", models.TextField(null=True)),
                ("parent_id", models.UUIDField(null=True)),
                ("labels", models.TextField(default="")),
            ],
            options={
                "db_table": "rivet_actor",
                "constraints": [models.UniqueConstraint(fields=("live_hash",), name="rivet_actor_live")],
                "indexes": [
                    models.Index(fields=["name", "lifecycle", "id"], name="rivet_actor_list"),
                    models.Index(fields=["name", "id"], name="rivet_actor_name"),
                    models.Index(fields=["lifecycle", "id"], name="rivet_actor_lifecycle"),
                    models.Index(fields=["name", "finished_at"], name="rivet_actor_retain"),
                    models.Index(fields=["unpruned_since"], name="rivet_actor_unpruned"),
                    models.Index(fields=["destroyed_at"], name="rivet_actor_destroyed"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Fire",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("actor_id", models.UUIDField()),
                ("name", models.CharField(max_length=128)),
                ("action", models.CharField(default="", max_length=255)),
                ("scheduled_at", models.BigIntegerField()),
                ("fired_at", models.BigIntegerField()),
                ("finished_at", models.BigIntegerField(null=True)),
                ("result", models.SmallIntegerField()),
                ("error", models.TextField(null=True)),
                ("worker_id", models.BigIntegerField(db_index=True, null=True)),
            ],
            options={
                "db_table": "rivet_fire",
                "indexes": [models.Index(fields=["actor_id", "name", "id"], name="rivet_fire_name")],
            },
        ),
        migrations.CreateModel(
            name="History",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "actor_id", "seq", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("actor_id", models.UUIDField()),
                ("seq", models.BigIntegerField()),
                ("scope", models.CharField(max_length=720)),
                ("name", models.CharField(max_length=255)),
                ("kind", models.SmallIntegerField()),
                ("occurrence", models.IntegerField()),
                ("status", models.SmallIntegerField()),
                ("started_at", models.BigIntegerField()),
                ("done_seq", models.BigIntegerField(null=True)),
                ("done_at", models.BigIntegerField(null=True)),
                ("input", models.TextField(null=True)),
                ("input_hash", models.CharField(max_length=64, null=True)),
                ("output", models.TextField(null=True)),
                ("error", models.TextField(null=True)),
                ("attempts", models.TextField(null=True)),
                ("rollback", models.TextField(null=True)),
                ("rolled_back_at", models.BigIntegerField(null=True)),
            ],
            options={
                "db_table": "rivet_history",
                "indexes": [models.Index(fields=["actor_id", "scope"], name="rivet_history_scope")],
            },
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("actor_id", models.UUIDField()),
                ("queue", models.CharField(max_length=128)),
                ("body", models.TextField()),
                ("sent_at", models.BigIntegerField()),
                ("visible_at", models.BigIntegerField()),
                ("holder_seq", models.BigIntegerField(null=True)),
                ("wants_reply", models.BooleanField(default=False)),
            ],
            options={
                "db_table": "rivet_message",
                "indexes": [models.Index(fields=["actor_id", "queue"], name="rivet_message_queue")],
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                ("actor_id", models.UUIDField(primary_key=True, serialize=False)),
                ("type_id", models.BigIntegerField()),
                ("owner_id", models.BigIntegerField(null=True)),
                ("epoch", models.IntegerField(default=0)),
                ("commit_no", models.BigIntegerField(default=0)),
                ("next_seq", models.BigIntegerField(default=1)),
                ("event_seq", models.BigIntegerField(default=0)),
                ("inflight", models.TextField(default="")),
                ("blocked", models.SmallIntegerField(default=0)),
                ("blocked_code", models.CharField(default="", max_length=64)),
                ("code", models.CharField(default="", max_length=64)),
                ("format", models.SmallIntegerField(default=1)),
            ],
            options={
                "db_table": "rivet_run",
                "indexes": [
                    models.Index(
                        condition=models.Q(("owner_id__isnull", False)),
                        fields=["owner_id"],
                        name="rivet_run_owner",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("type_id", models.BigIntegerField()),
                ("actor_id", models.UUIDField()),
                ("name", models.CharField(max_length=128, null=True)),
                ("kind", models.SmallIntegerField()),
                ("action", models.CharField(max_length=255)),
                ("args", models.TextField(default="")),
                ("rule", models.TextField(default="")),
                ("timezone", models.CharField(default="", max_length=64)),
                ("next_at", models.BigIntegerField(null=True)),
                ("last_at", models.BigIntegerField(null=True)),
                ("max_history", models.IntegerField(default=0)),
            ],
            options={
                "db_table": "rivet_schedule",
                "indexes": [
                    models.Index(fields=["type_id", "next_at", "id"], name="rivet_schedule_due"),
                    models.Index(fields=["actor_id", "next_at", "id"], name="rivet_schedule_actor"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("actor_id", "name"), name="rivet_schedule_name")
                ],
            },
        ),
        migrations.CreateModel(
            name="Timer",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("type_id", models.BigIntegerField()),
                ("actor_id", models.UUIDField()),
                ("kind", models.SmallIntegerField()),
                ("due", models.BigIntegerField()),
                ("priority", models.SmallIntegerField(default=0)),
                ("lane", models.CharField(max_length=64, null=True)),
            ],
            options={
                "db_table": "rivet_timer",
                "indexes": [
                    models.Index(fields=["type_id", "due"], name="rivet_timer_due"),
                    models.Index(fields=["actor_id"], name="rivet_timer_actor"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Waiter",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "child_id", "parent_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("child_id", models.UUIDField()),
                ("parent_id", models.UUIDField()),
            ],
            options={
                "db_table": "rivet_waiter",
                "indexes": [models.Index(fields=["parent_id"], name="rivet_waiter_parent")],
            },
        ),
        migrations.RunPython(tune, migrations.RunPython.noop, elidable=False),
    ]
