"""Stock and orders."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """As ``manage.py makemigrations`` wrote it."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Stock",
            fields=[
                ("sku", models.CharField(max_length=20, primary_key=True, serialize=False)),
                ("n", models.IntegerField()),
            ],
            options={
                "db_table": "stock",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("n__gte", 0)), name="never_below_nothing"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("quantity", models.IntegerField()),
                ("state", models.CharField(default="placed", max_length=20)),
                (
                    "sku",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="shop.stock"),
                ),
            ],
            options={"db_table": "orders"},
        ),
    )
