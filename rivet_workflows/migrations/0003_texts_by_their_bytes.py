"""On MariaDB and MySQL every text of ours is compared by its bytes, blanks at its end included, as elsewhere.

``utf8mb4_bin``, which the first migration gave, takes ``work`` and ``work `` for one; the table of calls had whatever the
database has by default, a character set that cannot hold every text perhaps.
"""

from django.db import migrations

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
    "rivet_call",
)
#: MariaDB's, MySQL's since 8.0.17, and what both have.
COLLATIONS = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin", "utf8mb4_bin")


def compare_bytes(apps, schema_editor):
    if schema_editor.connection.vendor != "mysql":
        return
    with schema_editor.connection.cursor() as cursor:  # the editor refuses DDL in a migration's transaction
        cursor.execute("SELECT collation_name FROM information_schema.collations")
        there = {name for (name,) in cursor.fetchall()}
        collation = next(name for name in COLLATIONS if name in there)
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}")


class Migration(migrations.Migration):
    dependencies = [("rivet_workflows", "0002_calls")]

    operations = [migrations.RunPython(compare_bytes, migrations.RunPython.noop)]
