"""Connection strings: the choice of the database, and the part of it that a log may have."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgflow._db.dsn import resolve_dsn
from pgflow.embedded import acquire_unnamed
from pgflow.errors import EmbeddedServerError, InvalidArgument
from pgflow.texts import without_secrets


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    monkeypatch.delenv("PGFLOW_DSN", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)


def test_the_argument_wins_over_both_variables(monkeypatch):
    monkeypatch.setenv("PGFLOW_DSN", "postgresql://one")
    monkeypatch.setenv("DATABASE_URL", "postgresql://two")
    assert resolve_dsn("postgresql://argument") == "postgresql://argument"


def test_our_variable_wins_over_the_common_one(monkeypatch):
    monkeypatch.setenv("PGFLOW_DSN", "postgresql://one")
    monkeypatch.setenv("DATABASE_URL", "postgresql://two")
    assert resolve_dsn(None) == "postgresql://one"


def test_the_common_variable_is_the_last_resort(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://two")
    assert resolve_dsn(None) == "postgresql://two"


def test_nothing_means_the_embedded_server():
    assert resolve_dsn() is None


@pytest.mark.parametrize("empty", ["", " \n"])
@pytest.mark.parametrize("origin", ["PGFLOW_DSN", "DATABASE_URL", "the DSN"])
def test_what_is_set_and_empty_is_a_secret_that_did_not_arrive(monkeypatch, origin, empty):
    if origin != "the DSN":
        monkeypatch.setenv(origin, empty)
    with pytest.raises(InvalidArgument, match=f"{origin} is set and empty: name a database"):
        resolve_dsn(empty if origin == "the DSN" else None)


def test_a_variable_that_is_not_asked_may_be_empty(monkeypatch):
    monkeypatch.setenv("PGFLOW_DSN", "postgresql://one")
    monkeypatch.setenv("DATABASE_URL", "")
    assert resolve_dsn() == "postgresql://one"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"CI": "true"}, "CI=true forbids the embedded server"),
        ({"CI": "woodpecker"}, "CI=woodpecker forbids the embedded server"),
        ({"PGFLOW_EMBEDDED": "0"}, "PGFLOW_EMBEDDED=0 forbids the embedded server"),
        ({"CI": "true", "PGFLOW_EMBEDDED": "0"}, "PGFLOW_EMBEDDED=0 forbids"),
        ({"PGFLOW_EMBEDDED": "no"}, "PGFLOW_EMBEDDED is 0 or 1, not 'no'"),
    ],
)
def test_the_embedded_server_can_be_forbidden(monkeypatch, variables, said):
    for name in ("CI", "PGFLOW_EMBEDDED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EmbeddedServerError, match=said):
        acquire_unnamed()


@pytest.mark.parametrize(
    "given",
    [
        "postgres://app:pw@db:5433/orders?sslmode=require",
        "postgresql+psycopg://app:pw@db:5433/orders?sslmode=require",
        "postgresql+psycopg_async://app:pw@db:5433/orders?sslmode=require",
        "postgresql+asyncpg://app:pw@db:5433/orders?sslmode=require",
        "postgis://app:pw@db:5433/orders?sslmode=require",
        " postgresql://app:pw@db:5433/orders?sslmode=require\n",
    ],
)
def test_a_framework_may_write_the_scheme_in_its_own_way(given):
    resolved = resolve_dsn(given)
    assert resolved == "postgresql://app:pw@db:5433/orders?sslmode=require"
    assert conninfo_to_dict(resolved)["host"] == "db"


@pytest.mark.parametrize(
    "given",
    ["host=db dbname=orders", "service=orders", "postgresql://", "postgresql:///orders?host=/run"],
)
def test_what_libpq_understands_is_left_as_it_is(given):
    assert resolve_dsn(given) == given


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://app:hunter2@hunter2@db/orders", "postgresql://app:hunter2/hunter2@db/orders", "postgresql://app:12/hunter2@db/orders",
        "postgresql://app:hunter2%hunter2@db/orders", "postgresql://app:hunter2 hunter2@db/orders",
        "postgresql://app:hunter2%zz@db", "postgresql+psycopg://app:hunter2@b@db",
        "host=db password=hunter2 hunter2", "host=db password='hunter2", "app:hunter2@db/orders", "password=a hunter2=b", "postgresql://db:hunter2/x",
    ],
)  # fmt: skip
def test_a_string_that_libpq_would_cut_in_its_password_is_refused_and_not_repeated(given):
    with pytest.raises(
        InvalidArgument, match="the DSN cannot be read as a connection string"
    ) as raised:
        resolve_dsn(given)
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("host=db pasword=hunter2", "password"),
        ("postgresql://app:hunter2@db/x?sslmod=require", "sslmode"),
    ],
)
def test_a_name_that_is_nearly_one_is_said(given, meant):
    with pytest.raises(InvalidArgument, match=f"where '{meant}' may be meant$"):
        resolve_dsn(given)


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://app:p%40ss%2Fw%25@db1:5432,db2/orders", "postgresql://db:5432/orders?user=a@b", "postgresql:///orders?host=@abstract",
        "postgresql://app@[::1]:5432/orders", "postgresql://app:@db/a%40b", "postgresql://app:a?b@db", "host=/run,db port=5432,", "postgresql://%2Frun%2Fpg/orders",
    ],
)  # fmt: skip
def test_what_only_looks_odd_is_taken(given):
    assert resolve_dsn(given) == given


@pytest.mark.parametrize(
    ("query", "taken"),
    [
        ("pgbouncer=true", ""),
        ("pgbouncer=true&connection_limit=1", ""),
        ("pool_timeout=10&sslmode=require", "?sslmode=require"),
        ("ssl=require", "?sslmode=require"),
        ("ssl=true&sslmode=require", "?sslmode=require"),
        ("ssl=false", "?sslmode=disable"),
        ("ssl=verify-full&sslrootcert=system", "?sslmode=verify-full&sslrootcert=system"),
        ("schema=public&connect_timeout=5", "?connect_timeout=5"),
        ("schema=shop", "?options=-c%20search_path%3Dshop"),
        ("schema=a%20b%5C", "?options=-c%20search_path%3D%22a%5C%20b%5C%5C%22"),
        ("options=-c%20a.b=c", "?options=-c%20a.b%3Dc"),
        ("options=endpoint%3Dx&schema=y", "?options=endpoint%3Dx%20-c%20search_path%3Dy"),
        ("supa=base-pooler.x", ""),
        ("prepareThreshold=0", ""),
        ("channel_binding=require&options=endpoint%3Dep-1", None),
        ("", ""),
    ],
)
def test_parameters_of_other_libraries_are_put_in_words_of_libpq(query, taken):
    before = "postgresql://app:hunter2@db:5432/shop"
    wanted = f"?{query}" if taken is None else taken
    assert resolve_dsn(f"{before}?{query}") == before + wanted
    assert conninfo_to_dict(before + wanted)["password"] == "hunter2"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("foo=1", "'foo', which Postgres does not know: leave it out"),
        ("sslmod=require", "'sslmod' where 'sslmode' may be meant"),
        ("pgbouncre=true&password=hunter3", "'pgbouncre'"),
        ("ssl=maybe", "ssl, which is true, false or one of the modes of sslmode"),
        ("SSL=true", "'SSL', which Postgres does not know: write sslmode and sslrootcert instead"),
        ("tls=true", "'tls', which Postgres does not know: write sslmode"),
        ("sslaccept=strict", "'sslaccept', which Postgres does not know: write sslmode"),
        ("ssl=require&sslmode=disable", "ssl, which is true"),
    ],
)
def test_a_parameter_that_is_not_known_is_named_and_the_password_is_not(query, named):
    with pytest.raises(InvalidArgument) as refused:
        resolve_dsn(f"postgresql://app:hunter2@db/shop?{query}")
    assert f"the DSN has the parameter {named}" in str(refused.value)
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize("secret", ["hun?ter2=x", "hun?ter2", "hun?a=b&ter2=c", "?ter2=hun"])
def test_a_password_with_a_question_mark_is_never_taken_for_a_parameter(secret):
    said = ""
    try:
        resolve_dsn(f"postgresql://app:{secret}@db/shop")
    except InvalidArgument as refused:
        said = str(refused)
    assert "ter2" not in said


@pytest.mark.parametrize("url", ["mysql://app:hunter2@db/orders", "sqlite:///orders.db"])
def test_another_kind_of_database_is_refused_by_name_and_without_its_password(monkeypatch, url):
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(
        InvalidArgument, match="DATABASE_URL names a (mysql|sqlite) database"
    ) as raised:
        resolve_dsn(None)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(("dsn", "redacted"), [
    ("postgresql://app:hunter2@db/orders", "postgresql://app:***@db/orders"),
    ("postgresql+psycopg://app:hunter2@db/orders", "postgresql+psycopg://app:***@db/orders"),
    ("postgresql://:hunter2@db", "postgresql://:***@db"),
    ("postgresql://app:hunter%402@db1:1,db2:2/orders?a=b",
        "postgresql://app:***@db1:1,db2:2/orders?a=b"),
    ("postgresql:///orders?user=a@b&password=hunter2", "postgresql:///orders?user=a@b&password=***"),
    ("postgresql://app@db/orders", "postgresql://app@db/orders"),
    ("postgresql://db:5432/orders", "postgresql://db:5432/orders"),
    ("host=db password=hunter2 dbname=orders", "host=db password=*** dbname=orders"),
    ("password = 'hunter \\' 2' host=db", "password = *** host=db"),
    ("host=db password=hunter\\ 2 port=1", "host=db password=*** port=1"),
    ("sslpassword=hunter2 oauth_client_secret=hunter2",
        "sslpassword=*** oauth_client_secret=***"),
    ("host=db user=app", "host=db user=app"),
    ("", ""),
])  # fmt: skip
def test_what_is_secret_is_hidden_and_nothing_else(dsn, redacted):
    assert without_secrets(dsn) == redacted


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:hunter2@hunter2@db/orders",
        "postgresql://app:hunter2/hunter2@db/orders",
        "postgresql://app:hunter2?hunter2@db/orders",
        "host=db password='hunter2 hunter2",
        "PASSWORD=hunter2",
    ],
)
def test_a_malformed_dsn_does_not_give_its_password_away(dsn):
    assert "hunter2" not in without_secrets(dsn)
