"""Calls of actions that run where a worker holds the actor."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("rivet_workflows", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="Call",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("type_id", models.BigIntegerField()),
                ("actor_id", models.UUIDField()),
                ("action", models.CharField(max_length=255)),
                ("args", models.TextField()),
                ("user", models.TextField(null=True)),
                ("waits", models.BooleanField(default=True)),
                ("status", models.SmallIntegerField()),
                ("worker_id", models.BigIntegerField(db_index=True, null=True)),
                ("until", models.BigIntegerField(db_index=True)),
                ("once", models.CharField(max_length=64, null=True)),
                ("answer", models.TextField(null=True)),
            ],
            options={
                "db_table": "rivet_call",
                "indexes": [
                    models.Index(fields=["type_id", "status"], name="rivet_call_type"),
                    models.Index(fields=["actor_id"], name="rivet_call_actor"),
                ],
            },
        ),
    ]
