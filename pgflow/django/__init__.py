"""Django: transactions for steps, starts inside ``atomic``, and the app made from the settings.

    @pgflow.django.transaction
    def reserve(order_id: int) -> int:
        Order.objects.filter(pk=order_id).update(state="reserved")
        ...

    with transaction.atomic():
        order.save()
        options = checkout.options(key=f"order-{order.pk}")
        pgflow.django.app.using(connection).start(options, order.pk)

Settings: ``PGFLOW = {"INCLUDE": ["shop.workflows"], "DATABASE": "default", "DSN": None}``; without
``DSN`` the parameters of the database named are used. ``"CODEC": "shop.keys.codec"`` names a
:class:`pgflow.extensions.PayloadCodec`. ``INSTALLED_APPS = [..., "pgflow.django"]`` brings
``manage.py pgflow``, which is pgflow's command line on the project's database, and a list of runs
in the admin.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, LiteralString, ParamSpec, TypeVar

from django.conf import settings
from django.db import close_old_connections, connections
from django.db import transaction as django_transaction
from django.utils.module_loading import import_string  # noqa: TID251 - the project's settings name it
from psycopg.conninfo import make_conninfo

from pgflow._flow.decorators import make_transaction
from pgflow._flow.step import SyncStep
from pgflow._transactions.join import Adapted, Row, refuse_without_transaction
from pgflow._transactions.provider import Transaction, in_time
from pgflow.app import App
from pgflow.errors import DefinitionError

P = ParamSpec("P")
R = TypeVar("R")


class _Executor:
    """Runs statements on a connection of Django, in its transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: LiteralString, params: Sequence[Any]) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, list(params))
            return list(cursor.fetchall())


class _DjangoTransaction(_Executor):
    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.connection = connection

    @property
    def driver_connection(self) -> Any:
        """psycopg's, once Django has connected."""
        return self.connection.connection

    def fileno(self) -> int | None:
        below = self.connection.connection
        return int(below.fileno()) if hasattr(below, "fileno") else None

    def flush(self) -> None:
        """Django holds nothing back."""

    def commit(self) -> None:
        """Leave ``atomic``, which commits. Functions registered with ``on_commit`` run after it."""
        self._is_open = (
            False  # whatever comes of it: an ``atomic`` block that fails to commit has ended too
        )
        self._atomic.__exit__(None, None, None)

    def begin(self, isolation: str | None) -> None:
        self._atomic = django_transaction.atomic(using=self.connection.alias)
        self._atomic.__enter__()
        self._is_open = True
        if isolation is not None:
            with self.connection.cursor() as cursor:
                # It is one of three literals of ours.
                cursor.execute(f"set transaction isolation level {isolation}")

    def close(self, error: BaseException | None) -> None:
        if self._is_open:
            self.connection.set_rollback(True)
            self._atomic.__exit__(type(error), error, None) if error else self._atomic.__exit__(
                None, None, None
            )


class DjangoProvider:
    """Transactions on one of Django's databases, for ``def`` steps.

    Args:
        alias: Name in ``DATABASES``; it must be the one that pgflow lives in.
    """

    def __init__(self, alias: str = "default") -> None:
        self._alias = alias

    def provides(self, annotation: Any) -> bool:
        """None by annotation: steps of :func:`transaction` name this provider."""
        del annotation
        return False

    @contextmanager
    def begin(self, isolation: str | None) -> Iterator[Transaction]:
        """An ``atomic`` block on this thread's connection."""
        connection = connections[self._alias]
        opened = _DjangoTransaction(connection)
        with in_time(_open_socket(opened)):
            close_old_connections()  # which may ask the server whether it is there
            if connection.in_atomic_block:
                raise DefinitionError(
                    "a transactional step cannot run inside another atomic block of the same thread"
                )
            opened.begin(isolation)
        error: BaseException | None = None
        try:
            yield opened
        except BaseException as raised:
            error = raised
            raise
        finally:
            with in_time(_open_socket(opened)):
                opened.close(error)
                close_old_connections()


def _open_socket(transaction: _DjangoTransaction) -> int | None:
    """The socket of this thread's connection, if there is one that is open."""
    below = transaction.connection.connection
    return None if below is None or below.closed else transaction.fileno()


def transaction(fn: Callable[P, R], /) -> SyncStep[P, R, Callable[P, R]]:
    """Declare a transactional step on Django's database. The ORM calls of its body and its result
    commit together.
    """
    made: SyncStep[P, R, Callable[P, R]] = make_transaction(
        fn, provider=DjangoProvider(database_alias())
    )
    return made


def _config() -> dict[str, Any]:
    config: dict[str, Any] = getattr(settings, "PGFLOW", {})
    return config


def adapt(connection: Any) -> Adapted:
    """A connection of Django as the engine uses it; pgflow calls this for ``app.using(...)``."""
    alias = str(getattr(connection, "alias", "default"))
    actual = connections[alias]
    if not actual.in_atomic_block:
        raise refuse_without_transaction(actual)

    def after_commit(action: Callable[[], None]) -> None:
        django_transaction.on_commit(action, using=alias)

    return Adapted(_Executor(actual), is_async=False, after_commit=after_commit)


def database_alias() -> str:
    """Return the alias in ``DATABASES`` of the database that pgflow lives in."""
    return str(_config().get("DATABASE", "default"))


def database_dsn(alias: str | None = None) -> str:
    """The connection string of a database of the project.

    Args:
        alias: Name in ``DATABASES``; None for the one that the settings say pgflow lives in.

    Raises:
        DefinitionError: It is not a Postgres database.
    """
    config = _config()
    if alias is None and config.get("DSN"):
        return str(config["DSN"])
    database = connections[alias or database_alias()]
    if database.vendor != "postgresql":
        raise DefinitionError(
            f"DATABASES[{database.alias!r}] is a {database.vendor} database: pgflow needs Postgres"
        )
    parameters = {
        k: v
        for k, v in database.get_connection_params().items()
        if k
        in (
            "dbname",
            "user",
            "password",
            "host",
            "port",
            "sslmode",
            "sslrootcert",
            "sslcert",
            "sslkey",
            "service",
            "passfile",
        )
    }
    return make_conninfo("", **parameters)


def migrates() -> bool:
    """Return True if ``manage.py migrate`` installs pgflow's schema: unless the settings say not
    to, or name a database of pgflow's own.
    """
    config = _config()
    return bool(config.get("MIGRATE", not config.get("DSN")))


@cache
def project_app() -> App:
    """The app made of the settings, once a process; :data:`app` is the same."""
    include = [importlib.import_module(name) for name in _config().get("INCLUDE", ())]  # noqa: TID251 - the project's settings name it
    codec = _config().get("CODEC")
    return App(
        database_dsn(),
        include=include,
        codec=import_string(codec) if isinstance(codec, str) else codec,
    )


if TYPE_CHECKING:
    app: App
else:

    def __getattr__(name: str) -> Any:
        """``pgflow.django.app`` is made when first used, once Django's settings are there."""
        if name == "app":
            return project_app()
        raise AttributeError(name)
