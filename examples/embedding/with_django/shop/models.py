"""The shop's tables."""

from django.db import models


class Stock(models.Model):
    """Goods in stock."""

    sku = models.CharField(primary_key=True, max_length=20)
    n = models.IntegerField()

    class Meta:
        """The database prevents the shop from selling goods that it lacks."""

        db_table = "stock"
        constraints = (
            models.CheckConstraint(condition=models.Q(n__gte=0), name="never_below_nothing"),
        )

    def __str__(self) -> str:
        """As in the admin."""
        return self.sku


class Order(models.Model):
    """Order of a customer."""

    sku = models.ForeignKey(Stock, models.PROTECT)
    quantity = models.IntegerField()
    state = models.CharField(max_length=20, default="placed")

    class Meta:
        """Named as in the other examples."""

        db_table = "orders"

    def __str__(self) -> str:
        """As in the admin."""
        return f"order {self.pk}"
