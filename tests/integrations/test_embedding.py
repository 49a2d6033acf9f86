"""examples/embedding: in each library a rollback leaves no run, a commit starts exactly one, and it
works beside the application's rows.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import clikit
import httpx
import psycopg
import pytest
import servers
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from poolers import bouncer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from records import SOON, count
from servers import HANG_SECONDS
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import NullPool

from examples.embedding import (
    with_fastapi,
    with_flask,
    with_pgbouncer,
    with_psycopg,
    with_sqlalchemy,
    with_sqlalchemy_async,
)
from examples.embedding.with_alembic import shop
from pgflow.alembic import include_name

FOLDER = servers.REPOSITORY / "examples" / "embedding"
SAID = "order 1 is shipped\nno order and no run: too few lamps\n"


@pytest.fixture(autouse=True)
def _named(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGFLOW_DSN", dsn)


def books(conn: psycopg.Connection) -> dict[str, Any]:
    """Return the two orders as the shop and pgflow have them."""
    return {
        "orders": conn.execute("select quantity, state from orders").fetchall(),
        "stock": conn.execute("select n from stock").fetchall(),
        "runs": conn.execute("select workflow, status from pgflow.runs").fetchall(),
    }


NOTHING = {"orders": [], "stock": [(3,)], "runs": []}
PLACED = {"orders": [(2, "placed")], "stock": [(1,)], "runs": [("ship", "queued")]}
SHIPPED = {"orders": [(2, "shipped")], "stock": [(1,)], "runs": [("ship", "completed")]}


def are_one_transaction(conn: psycopg.Connection) -> bool:
    """Return True if the commit that took the goods started the run, and the one that changed the
    order recorded the step.
    """
    row = conn.execute("select s.xmin::text = r.xmin::text from stock s, pgflow.run r").fetchone()
    step = conn.execute(
        "select o.xmin::text = u.xmin::text from orders o, pgflow.unit u where u.name ~ "
        "'mark_shipped' and u.kind = 'c'"
    ).fetchone()
    return (row, step) == ((True,), (True,))


@pytest.mark.full
@pytest.mark.parametrize(
    "main",
    [with_psycopg.main, with_sqlalchemy.main, lambda: asyncio.run(with_sqlalchemy_async.main())],
    ids=["psycopg", "sqlalchemy", "sqlalchemy async"],
)
def test_of_two_orders_the_one_that_is_committed_has_a_run(main, conn, capsys):
    main()
    assert capsys.readouterr().out == SAID
    assert books(conn) == SHIPPED
    assert are_one_transaction(conn)


@pytest.mark.full
def test_of_two_orders_through_a_pooler_in_transaction_mode_the_one_that_is_committed_has_a_run(
    dsn, conn, monkeypatch, capsys
):
    with bouncer(dsn, "transaction") as address:
        monkeypatch.setenv("PGFLOW_DSN", address)
        with_pgbouncer.main()
    assert capsys.readouterr().out == SAID
    assert books(conn) == SHIPPED
    assert are_one_transaction(conn)


REQUEST = {
    "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/orders", "raw_path": b"/orders",
    "query_string": b"", "root_path": "", "headers": [(b"content-type", b"application/json")], "client": None, "server": ("shop", 80),
}  # fmt: skip


@pytest.mark.full
def test_a_request_of_fastapi_is_a_transaction_and_another_process_does_the_work(dsn, conn):
    async def visit() -> None:
        transport = httpx.ASGITransport(with_fastapi.web)
        async with (
            with_fastapi.lifespan(with_fastapi.web),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
        ):
            conn.execute("insert into stock values ('lamp', 3)")
            refused = await client.post("/orders", json={"sku": "lamp", "quantity": 1000})
            assert (refused.status_code, books(conn)) == (409, NOTHING)
            answer = await client.post("/orders", json={"sku": "lamp", "quantity": 2})
            assert (answer.status_code, count(conn, "orders"), count(conn, "pgflow.runs")) == (
                201,
                1,
                1,
            )
            [(order_id,)] = conn.execute("select order_id from orders").fetchall()
            assert answer.json() == {"run": f"order-{order_id}"}
            worker = await asyncio.to_thread(
                lambda: clikit.finish(clikit.process(dsn, "tick", str(FOLDER / "with_fastapi.py")))
            )
            assert (worker.code, worker.err, worker.data["completed"]) == (0, "", 1), worker
            await with_fastapi.app.get(f"order-{order_id}", with_fastapi.ship).result(SOON)
            found = (await client.get(f"/orders/{order_id}")).json()
            assert found == {"state": "shipped", "run": "completed"}
            assert (await client.get("/pgflow/runs")).status_code == 401
            page = await client.get("/pgflow/runs", headers={"x-forwarded-user": "ann"})
            assert f"order-{order_id}" in page.text
            assert (await client.get("/orders/999")).status_code == 404

    asyncio.run(visit())
    assert books(conn) == SHIPPED
    assert are_one_transaction(conn)


def test_the_commit_of_a_request_of_fastapi_precedes_its_answer(conn):
    seen: list[int] = []

    async def visit() -> None:
        async with with_fastapi.lifespan(with_fastapi.web):
            conn.execute("insert into stock values ('lamp', 3)")
            await with_fastapi.web(REQUEST, receive, send)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"sku": "lamp", "quantity": 2}'}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen.append(count(conn, "pgflow.runs"))

    asyncio.run(visit())
    assert seen == [1]


@pytest.mark.full
def test_a_request_of_flask_is_a_transaction_and_another_process_does_the_work(dsn, conn):
    web = with_flask.create_web()
    with web.extensions["pool"], with_flask.app, web.test_client() as client:
        refused = client.post("/orders", json={"sku": "lamp", "quantity": 1000})
        assert (refused.status_code, books(conn)) == (409, NOTHING)
        answer = client.post("/orders", json={"sku": "lamp", "quantity": 2})
        assert (answer.status_code, books(conn)) == (201, PLACED)
        worker = clikit.finish(clikit.process(dsn, "tick", str(FOLDER / "with_flask.py")))
        assert (worker.code, worker.err, worker.data["completed"]) == (0, "", 1), worker
    assert books(conn) == SHIPPED
    assert are_one_transaction(conn)


@pytest.fixture
def manage(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command of the project's; answers what it said."""
    monkeypatch.delenv("PGFLOW_DSN")
    monkeypatch.setenv("DATABASE_URL", dsn)
    monkeypatch.setenv("PYTHONWARNINGS", "error")

    def run(*arguments: str, code: int = 0, with_errors: bool = False) -> str:
        command = [sys.executable, "manage.py", *arguments]
        ended = subprocess.run(
            command,
            cwd=FOLDER / "with_django",
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_SECONDS,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr if code or with_errors else ended.stdout

    return run


SET_UP = """
from django.core.management import call_command
call_command("check", fail_level="WARNING")
call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)
call_command("migrate", verbosity=0)
"""

REQUESTS = """
import json
from django.test import Client
from shop.models import Stock
Stock.objects.create(sku="lamp", n=3)
said = {}
for name, quantity in (("refused", 1000), ("placed", 2)):
    said[name] = Client().post("/orders", {"sku": "lamp", "quantity": quantity}, content_type="application/json").status_code
print(json.dumps(said))
"""

ADMIN = """
import json
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.test.utils import setup_test_environment
from pgflow.django.models import Run
setup_test_environment()
run, = Run.objects.all()
said, browser, guest = {}, Client(), Client()
browser.force_login(User.objects.create_superuser("ada"))
one = f"{run.pk}/change/"
for page in ("", "?status=completed", "?status=stuck", "?workflow=ship", f"?q={run.key}", "?q=order-x", one):
    answer = browser.get(f"/admin/pgflow/run/{page}")
    shown = answer.context["cl"].result_list if page != one else [answer.context["original"]]
    said[page.replace(run.key, "KEY") if page != one else "one"] = [f"{run.key} {run.status} {run.input} {run.output}" for run in shown]
said["add"] = browser.get("/admin/pgflow/run/add/").status_code
said["delete"] = browser.post(f"/admin/pgflow/run/{run.pk}/delete/", {"post": "yes"}).status_code
said["change"] = browser.post(f"/admin/pgflow/run/{one}", {"key": "x"}).status_code
clerk = User.objects.create_user("clerk", is_staff=True)
guest.force_login(clerk)
said["without permission"] = guest.get("/admin/pgflow/run/").status_code
clerk.user_permissions.add(Permission.objects.get(content_type__app_label="pgflow"))
said["with permission"] = guest.get("/admin/pgflow/run/").status_code
print(json.dumps(said))
"""


@pytest.mark.full
def test_a_request_of_django_is_atomic_and_the_projects_own_command_works_and_looks(
    dsn, conn, manage
):
    found = json.loads(manage("shell", "-v0", "-c", SET_UP + REQUESTS).splitlines()[-1])
    assert found == {"refused": 409, "placed": 201}
    assert books(conn) == PLACED
    assert json.loads(manage("pgflow", "tick", "--json"))["completed"] == 1
    assert books(conn) == SHIPPED
    assert are_one_transaction(conn)
    (listed,) = json.loads(
        manage("pgflow", "--database", "default", "list", "--status", "completed", "--json")
    )
    seen = [
        f"{listed['key']} completed {{'order_id': {listed['key'].removeprefix('order-')}}} None"
    ]
    assert json.loads(manage("shell", "-v0", "-c", ADMIN)) == {
        "": seen,
        "?status=completed": seen,
        "?status=stuck": [],
        "?workflow=ship": seen,
        "?q=KEY": seen,
        "?q=order-x": [],
        "one": seen,
        "add": 403,
        "delete": 403,
        "change": 403,
        "without permission": 403,
        "with permission": 200,
    }


CONSOLE = """
import asyncio, json
import httpx
from django.contrib.auth.models import User
from django.test import Client
from asgi import application, lifespan
ada, eve = Client(), Client()
ada.force_login(User.objects.create_superuser("ada"))
eve.force_login(User.objects.create_user("eve"))
cookies = [{"sessionid": one.cookies["sessionid"].value} for one in (ada, eve)] + [{}, {"sessionid": "x"}]
async def look():
    said = []
    async with lifespan(application):
        for one in cookies:
            transport = httpx.ASGITransport(application)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop", cookies=one) as web:
                said.append((await web.get("/pgflow/runs")).status_code)
                found = await web.get("/pgflow/workers")
                said.append("ada" in found.text)
    return said
print(json.dumps(asyncio.run(look())))
"""


@pytest.mark.full
def test_the_console_stands_beside_a_site_of_django_for_its_staff(manage):
    answer = manage("shell", "-v0", "-c", SET_UP + CONSOLE).splitlines()[-1]
    assert json.loads(answer) == [200, True, 401, False, 401, False, 401, False]


@pytest.mark.full
def test_the_projects_command_ends_as_pgflows_does(empty_dsn, manage, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", empty_dsn)
    assert "has no schema pgflow" in manage("pgflow", "list", code=2)
    assert "Usage: pgflow list" in manage("pgflow", "help", "list")
    manage("pgflow", "migrate")
    assert servers.unsound(empty_dsn) == []


@pytest.mark.full
def test_migrate_of_a_project_installs_the_schema(empty_dsn, manage, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", empty_dsn)
    assert "Installed pgflow's schema" in manage("migrate")
    assert servers.unsound(empty_dsn) == []
    assert "pgflow" not in manage("migrate").partition("Running migrations:")[2]


@pytest.mark.full
def test_migrate_of_a_project_says_how_where_its_role_may_not_install(
    empty_dsn, manage, monkeypatch
):
    given: dict[str, Any] = conninfo_to_dict(empty_dsn)
    clerk = f"clerk_{given['dbname']}"
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(
            f"create role {clerk} login password 'secret'; grant create on schema public to {clerk}"
        )
        monkeypatch.setenv(
            "DATABASE_URL", make_conninfo(**{**given, "user": clerk, "password": "secret"})
        )
        said = manage("migrate", "--traceback", with_errors=True)
        assert "pgflow's schema was not installed: " in said
        assert "Run `manage.py pgflow migrate`" in said
        conn.execute(f"drop owned by {clerk}; drop role {clerk}")


@pytest.mark.full
def test_the_projects_command_lists_workers_where_that_is_asked_for(manage):
    assert json.loads(manage("pgflow", "workers", "--json")) == []
    assert json.loads(manage("pgflow", "workers", "--list", "--json")) == []


@pytest.fixture
def config() -> Iterator[Config]:
    """Alembic as `alembic -c examples/embedding/with_alembic/alembic.ini` has it."""
    return Config(FOLDER / "with_alembic" / "alembic.ini")


@pytest.mark.full
def test_a_migration_that_fails_takes_the_runs_with_it_that_it_has_started(config, conn):
    command.upgrade(config, "0001")
    conn.execute("insert into orders (sku) values ('lamp'), ('')")
    with pytest.raises(IntegrityError, match="sku_is_said"):
        command.upgrade(config, "head")
    assert count(conn, "pgflow.runs") == 0
    conn.execute("update orders set sku = 'desk' where sku = ''")
    command.upgrade(config, "head")
    with shop.app, shop.app.worker():
        for order_id in (1, 2):
            shop.app.get(f"order-{order_id}", shop.ship).result(SOON)
    found = conn.execute("select sku, state from orders order by 1").fetchall()
    assert found == [("desk", "shipped"), ("lamp", "shipped")]
    assert count(conn, "pgflow.runs", "status = 'completed'") == 2


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Did not recognize type")  # of the schema that is left out
def test_autogenerate_finds_nothing_to_do_beside_the_schema_of_pgflow(config, dsn):
    command.upgrade(config, "head")
    command.check(config)  # raises if there were something
    engine = create_engine(
        dsn.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool
    )

    def differences(**options: Any) -> list[Any]:
        with engine.connect() as connection:
            context = MigrationContext.configure(
                connection, opts={"include_schemas": True, **options}
            )
            return compare_metadata(context, shop.Base.metadata)

    assert differences(include_name=include_name) == []
    assert ("remove_table", "pgflow") in {
        (kind, getattr(thing[0], "schema", None)) for kind, *thing in differences()
    }


def test_only_what_is_in_the_schema_of_pgflow_is_left_out():
    assert not include_name("pgflow", "schema", {})
    assert not include_name("run", "table", {"schema_name": "pgflow"})
    assert include_name(None, "schema", {})
    assert include_name("pgflow", "table", {"schema_name": None})
    assert include_name("orders", "table", {"schema_name": "shop"})


def test_every_example_says_what_it_shows_and_is_in_the_list():
    listed = (FOLDER / "README.md").read_text()
    for path in [
        *FOLDER.glob("with_*.py"),
        *(path for path in FOLDER.glob("with_*") if path.is_dir()),
    ]:
        assert f"`{path.name}{'/' if path.is_dir() else ''}`" in listed
        (head,) = [p for p in (path, path / "manage.py", path / "__init__.py") if p.is_file()]
        assert "Run it" in head.read_text().split('"""')[1]
