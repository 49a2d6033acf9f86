"""Connection strings: the choice of the database, and its name in public.

The first of these wins: the argument, ``PGFLOW_DSN``, ``DATABASE_URL``; none means the embedded
server. The last of the three belongs to the application, whose framework may write the scheme in
its own way. One that is set and empty is a secret that did not arrive: an error, since work that
went to a private server instead would look as if it were done.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from pgflow.errors import InvalidArgument

VARIABLES = ("PGFLOW_DSN", "DATABASE_URL")
SCHEMES = ("postgresql", "postgres", "pgsql", "postgis")

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9.-]*)(?:\+(?P<driver>\w+))?://(?P<rest>.*)", re.DOTALL
)
_CUT_AT_A_SLASH = re.compile(r"\w+://[^/?@]*:[^/?@]*/[^?]*@")
"""Pattern for the part that libpq takes for host,
port and database where a password holds a slash.
"""

_UNKNOWN_NAME = re.compile(r"(?:option|parameter)[: ]+\"([^\"]*)\"")
_PAIRS = (
    "pass a URL (postgresql://user@host/database) or keyword=value pairs, "
    "quoting a value with a space, as in password='a b'"
)
_PARTS = (
    "in the user and the password of a URL, "
    "write @ as %40, : as %3A, / as %2F, % as %25 and a space as %20"
)


def resolve_dsn(dsn: str | None = None) -> str | None:
    """Say which database is meant.

    Args:
        dsn: Connection string of the caller: a URL, ``keyword=value`` pairs, or None.

    Returns:
        A connection string that libpq understands, or None, which means the embedded server.

    Raises:
        InvalidArgument: The first one that is set is empty or names another kind of database.

    Example::

        resolve_dsn("postgresql+psycopg://app@db/orders")  # 'postgresql://app@db/orders'
    """
    for origin, value in (("the DSN", dsn), *((name, os.environ.get(name)) for name in VARIABLES)):
        if value is None:
            continue
        if not value.strip():
            raise InvalidArgument(
                f"{origin} is set and empty: name a database, or leave it out to use another "
                "variable or the embedded server"
            )
        return _normalise(origin, value.strip())
    return None


def _normalise(origin: str, dsn: str) -> str:
    url = _URL.fullmatch(dsn)
    if url is None:
        _check(origin, dsn, _PAIRS)
        return dsn
    if url["scheme"].lower() not in SCHEMES:
        raise InvalidArgument(
            f"{origin} names a {url['scheme']} database: pgflow needs Postgres, set PGFLOW_DSN to "
            "one"
        )
    libpqs = f"postgresql://{_translate(origin, url['rest'])}"
    _check(origin, libpqs, _PARTS)
    return libpqs


_OF_OTHERS = frozenset(
    (
        # of Prisma, and of Supabase and Vercel for it
        *("pgbouncer", "connection_limit", "pool_timeout", "socket_timeout", "supa", "workaround"),
        *("statement_cache_size", "prepared_statement_cache_size", "max_idle_connection_lifetime"),
        # of Rails, SQLAlchemy and other pools
        *("pool", "pool_size", "pool_max_size", "pool_min_size", "max_overflow", "pool_recycle"),
        *("prepared_statements", "prepare_threshold", "preparethreshold", "reaping_frequency"),
        *("binary_parameters", "uselibpqcompat"),
    )
)
"""Parameters by which others size their pools and prepare statements: nothing here depends on them.
A pooler in transaction mode is noticed without them.
"""
_SSL = {
    **dict.fromkeys(("true", "1", "on"), "require"),
    **dict.fromkeys(("false", "0", "off"), "disable"),
    **{
        mode: mode for mode in ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
    },
}
"""Values of ``ssl=`` in URLs of asyncpg, node-postgres and others, as ``sslmode``."""


def _translate(origin: str, rest: str) -> str:
    """Return a URL after its scheme without the parameters of other libraries: they are translated
    for libpq, or do not matter here.

    Raises:
        InvalidArgument: A parameter is unknown. The error names it if it cannot be part of a
            password.
    """
    before, mark, query = rest.partition("?")
    if not mark or "@" in query:  # a password may hold an unescaped question mark
        return rest
    pairs = [part for part in query.split("&") if part]
    given = {unquote(pair.partition("=")[0]): unquote(pair.partition("=")[2]) for pair in pairs}
    kept: list[str] = []
    options: list[str] = []
    for pair in pairs:
        name, _, value = (unquote(part) for part in pair.partition("="))
        if name.lower() in _OF_OTHERS:
            continue
        if name == "ssl":
            mode = _SSL.get(value.lower())
            if mode is None or given.get("sslmode", mode) != mode:
                raise InvalidArgument(
                    f"{origin} has the parameter ssl, which is true, false or one of the modes of "
                    "sslmode, and does not contradict that: write sslmode instead"
                )
            kept.append(f"sslmode={mode}")
        elif name == "schema":
            # Ours is always pgflow; it is meant for the application's own tables.
            if value and value != "public":
                options.append(f"-c search_path={_as_option(value)}")
        elif name == "options":  # libpq refuses a bare = in it, and knows only the last
            options.append(value)
        else:
            _check_known(origin, name)
            kept.append(pair)
    if options:
        kept.append(f"options={quote(' '.join(options), safe='')}")
    return before + (f"?{'&'.join(dict.fromkeys(kept))}" if kept else "")


def _as_option(schema: str) -> str:
    """Return the name of a schema as the server takes it among its options."""
    is_plain = re.fullmatch(r"[a-z0-9_$,]+", schema) is not None
    name = schema if is_plain else f'"{schema.replace(chr(34), chr(34) * 2)}"'
    return re.sub(r"([\\\s])", r"\\\1", name)


def _check_known(origin: str, name: str) -> None:
    from psycopg.pq import Conninfo

    names = {option.keyword.decode() for option in Conninfo.get_defaults()}
    if name in names or not re.fullmatch(r"[A-Za-z][\w.-]{0,40}", name):
        return  # the rest is libpq's to judge
    if near := difflib.get_close_matches(name, names, 1, 0.8):
        advice = f" where {near[0]!r} may be meant"
    elif name.lower().startswith(("ssl", "tls")):  # left out, a connection could be in clear
        advice = ", which Postgres does not know: write sslmode and sslrootcert instead"
    else:
        advice = ", which Postgres does not know: leave it out"
    raise InvalidArgument(f"{origin} has the parameter {name!r}{advice}")


def _check(origin: str, dsn: str, hint: str) -> None:
    """Refuse a string that libpq would refuse, or split at a character of the password: its error
    would quote a part of that.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    typo = None
    try:
        is_whole = _is_whole(conninfo_to_dict(dsn)) and not _CUT_AT_A_SLASH.match(dsn)
    except ProgrammingError as error:
        is_whole, typo = False, _typo(str(error))
    if not is_whole:
        why = (
            "cannot be read as a connection string, and is not shown, since it may hold a password"
        )
        raise InvalidArgument(f"{origin} {why}: {typo or hint}")


def _typo(message: str) -> str | None:
    """Return a hint for a name that is close to one of libpq's: such a name is not part of a
    password.
    """
    from psycopg.pq import Conninfo

    found = _UNKNOWN_NAME.search(message)
    names = [option.keyword.decode() for option in Conninfo.get_defaults()]
    near = difflib.get_close_matches(found[1], names, 1, 0.8) if found else []
    return f"it has {found[1]!r} where {near[0]!r} may be meant" if found and near else None


def _is_whole(given: Mapping[str, object]) -> bool:
    hosts, ports = (str(given.get(name) or "").split(",") for name in ("host", "port"))
    return not any("@" in host[1:] for host in hosts) and all(
        port.isdecimal() or not port for port in ports
    )
