"""Django: transactions on its connection, starts inside `atomic`, and the app made from the
settings.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import django_project
import psycopg
import pytest
from django.db import connection, connections, transaction
from django_project import Stock, go, order, take, wait_for_go
from records import SOON, calling_sync, count, events, launch, result_of, wait_until

import pgflow.django
from pgflow import InvalidArgument, RunFailed, RunNotFound, RunStuck, workflow
from pgflow.errors import DefinitionError, NotInRunError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _project(dsn: str) -> Iterator[None]:
    django_project.point_at(dsn)
    yield
    connections.close_all()


def left(sku: str = "a") -> int:
    return Stock.objects.get(pk=sku).n


@pytest.mark.full
def test_what_a_transaction_saves_commits_with_its_result_from_workflows_of_both_colours(
    flow, conn
):
    @workflow
    async def order_async(sku: str, n: int) -> int:
        return await take.aio(sku, n)

    assert result_of(flow, order, "a", 1, beside=[order_async]) == 9 + 8
    assert flow.start(order_async, "b", 3).result(SOON) == 7
    assert (left("a"), left("b")) == (8, 7)
    same = "select s.xmin::text = u.xmin::text from stock s, pgflow.unit u where sku = 'b' and u.run_id = 2"
    assert conn.execute(same).fetchone() == (True,)


@pytest.mark.full
def test_a_body_that_raises_leaves_nothing(flow, conn):
    @pgflow.django.transaction
    def overdraw() -> None:
        Stock.objects.filter(pk="b").update(n=0)
        take.fn("a", 11)

    run = launch(flow, calling_sync(overdraw))
    with pytest.raises(RunFailed, match="IntegrityError"):
        run.result(SOON)
    assert (left("a"), left("b")) == (10, 10)
    assert [event for event, _ in events(conn, run.key)] == ["step_failed"]


def test_a_nested_atomic_block_in_the_body_is_a_savepoint(flow):
    @pgflow.django.transaction
    def careful() -> None:
        try:
            with transaction.atomic():
                take.fn("a", 11)
        except Exception:
            take.fn("b", 1)

    result_of(flow, calling_sync(careful))
    assert (left("a"), left("b")) == (10, 9)


def test_a_serialization_failure_is_tried_again_and_not_recorded(flow, conn):
    bodies = []

    @pgflow.django.transaction
    def contended() -> int:
        bodies.append(1)
        n = left()
        if len(bodies) == 1:
            conn.execute("update stock set n = n - 1")
        Stock.objects.filter(pk="a").update(n=n - 1)
        return len(bodies)

    connections.settings["default"]["OPTIONS"] = {
        "isolation_level": psycopg.IsolationLevel.REPEATABLE_READ
    }
    run = launch(flow, calling_sync(contended))
    assert run.result(SOON) == 2
    assert left() == 8
    assert [event for event, _ in events(conn, run.key)] == ["step_completed"]


REFUSE_FIRST_COMMIT = """
create sequence commits;
create function refuse_first() returns trigger language plpgsql as $$
begin
  if nextval('commits') = 1 then
    raise exception using errcode = '40001', message = 'could not serialize access';
  end if;
  return null;
end $$;
create constraint trigger refuse_first after update on stock deferrable initially deferred for each row execute function refuse_first();
"""


@pytest.mark.full
def test_a_commit_that_the_server_refuses_is_tried_again_and_not_recorded(flow, conn):
    conn.execute(REFUSE_FIRST_COMMIT)
    run = launch(flow, order, "a", 1)
    assert run.result(SOON) == 9 + 8
    assert "step_failed" not in [event for event, _ in events(conn, run.key)]


@pytest.mark.full
@pytest.mark.parametrize("sqlstate", ["23505", "40001", "42883"])
def test_an_error_of_what_is_registered_on_commit_is_none_of_the_commit(flow, conn, sqlstate):
    bodies = []

    def fail() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"do $$ begin raise exception using errcode = '{sqlstate}'; end $$")

    @pgflow.django.transaction
    def sell() -> int:
        bodies.append(1)
        take.fn("a", 1)
        transaction.on_commit(fail)
        return 1

    run = launch(flow, calling_sync(sell))
    assert run.result(SOON) == 1
    assert (left(), bodies) == (9, [1])
    assert [event for event, _ in events(conn, run.key)] == ["step_completed"]


def test_what_is_registered_on_commit_in_the_body_happens_after_it(flow):
    seen = []

    @pgflow.django.transaction
    def sell() -> None:
        take.fn("a", 1)
        transaction.on_commit(lambda: seen.append(left()))

    result_of(flow, calling_sync(sell))
    wait_until(lambda: seen == [9], "the callback ran after the commit")


def test_a_body_that_commits_by_itself_holds_the_run(flow):
    @pgflow.django.transaction
    def rash() -> None:
        take.fn("a", 1)
        with connection.cursor() as cursor:
            cursor.execute("commit")

    with pytest.raises(RunStuck, match="committed_outside"):
        result_of(flow, calling_sync(rash))
    assert left() == 9


@pytest.mark.full
def test_what_a_transaction_starts_shares_its_fate(flow, conn):
    @pgflow.django.transaction
    def start_other(key: str, fails: bool) -> None:
        flow.app.using(connection).start(wait_for_go.options(key=key), 1)
        flow.app.using(connection).send(key, go, 2)
        if fails:
            raise ValueError

    @workflow
    def starter() -> None:
        start_other("kept", fails=False)
        try:
            start_other("dropped", fails=True)
        except ValueError:
            return

    result_of(flow, starter, beside=[wait_for_go])
    assert flow.app.get("kept", wait_for_go).result(SOON) == 3
    with pytest.raises(RunNotFound):
        flow.app.get("dropped", wait_for_go).status()


def test_outside_a_workflow_a_transaction_is_refused_and_its_function_is_plain(flow):
    with pytest.raises(NotInRunError, match=r"take\.fn\(\)"):
        take("a", 1)
    with transaction.atomic():
        assert take.fn("a", 1) == 9


@pytest.mark.full
def test_a_start_in_an_atomic_block_is_one_run_after_it_and_none_if_it_raises(flow, conn):
    flow.include(wait_for_go)
    with pytest.raises(ValueError, match="no"), transaction.atomic():
        Stock.objects.filter(pk="a").update(n=0)
        flow.app.using(connection).start(wait_for_go.options(key="gone"))
        raise ValueError("no")
    assert (count(conn, "pgflow.runs"), left()) == (0, 10)
    with transaction.atomic():
        Stock.objects.filter(pk="a").update(n=0)
        run = flow.app.using(connection).start(wait_for_go.options(key="k"), 1)
        flow.app.using(connections["default"]).start(wait_for_go.options(key="k"), 1)
        assert count(conn, "pgflow.runs") == 0
    assert (count(conn, "pgflow.runs"), left()) == (1, 0)
    flow.until_idle()
    with transaction.atomic():
        flow.app.using(connection).send("k", go, 2)
    assert run.result(SOON) == 3


def test_a_nested_block_that_raises_takes_its_start_with_it(flow, conn):
    with transaction.atomic():
        flow.app.using(connection).start(wait_for_go.options(key="kept"))
        with pytest.raises(ValueError, match="no"), transaction.atomic():
            flow.app.using(connection).start(wait_for_go.options(key="dropped"))
            raise ValueError("no")
        with transaction.atomic():
            flow.app.using(connection).start(wait_for_go.options(key="kept too"))
    found = conn.execute("select key from pgflow.runs order by key").fetchall()
    assert found == [("kept",), ("kept too",)]


def test_the_end_of_the_outermost_block_wakes_the_worker_without_a_poll(dsn):
    with pgflow.App(dsn, include=[wait_for_go]) as app, app.worker(poll_seconds=3600):
        with transaction.atomic():
            with transaction.atomic():
                run = app.using(connection).start(wait_for_go, 1)
            app.using(connection).send(run.key, go, 1)
        assert run.result(SOON) == 2


def test_a_start_outside_an_atomic_block_is_refused(flow, conn):
    with pytest.raises(InvalidArgument, match="no open transaction"):
        flow.app.using(connection)
    assert count(conn, "pgflow.runs") == 0


def test_threads_of_the_project_have_transactions_of_their_own(flow, conn):
    def start(key: str) -> None:
        with transaction.atomic():
            flow.app.using(connection).start(wait_for_go.options(key=key))
        connection.close()

    threads = [threading.Thread(target=start, args=(f"k{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(conn, "pgflow.runs") == 3


@pytest.mark.full
def test_the_app_of_the_settings_lives_in_the_projects_database_and_knows_its_workflows(conn):
    app = pgflow.django.app
    with app, app.worker(poll_seconds=0.05):
        with transaction.atomic():
            run = app.using(connection).start(order.options(key="o"), "a", 2)
        assert run.result(SOON) == 8 + 6
    assert left() == 6
    assert set(app.definitions.workflows) == {"order", "wait_for_go"}
    assert pgflow.django.app is app


def test_a_database_that_is_not_postgres_is_refused(monkeypatch):
    pgflow.django.project_app.cache_clear()
    monkeypatch.setattr(type(connections["default"]), "vendor", "sqlite")
    with pytest.raises(DefinitionError, match="sqlite"):
        _ = pgflow.django.app
