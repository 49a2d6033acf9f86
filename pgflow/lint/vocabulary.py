"""Vocabulary of names, of Python and of well-known libraries, that do things a replay cannot
repeat.

Each set holds dotted paths. A path that ends in ``.*`` covers every function of a module, or every
method of an object (``psycopg.Connection().*``). A call on something that one of the paths made
counts as the path does (``requests.Session().get``).
"""

from __future__ import annotations

from dataclasses import dataclass


def _in(module: str, names: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for name in names.split())


def _paths(paths: str) -> frozenset[str]:
    return frozenset(paths.split())


@dataclass(frozen=True)
class Vocabulary:
    """Dotted paths, looked up by what is written.

    Args:
        paths: The paths, some with ``.*`` at the end.
        harmless: Paths below a ``.*`` that are not meant.
    """

    paths: frozenset[str]
    harmless: frozenset[str] = frozenset()

    def match(self, path: str, *, is_called: bool) -> str | None:
        """Return the part of a path that is one of these; None if none is.

        Args:
            path: Dotted path of a reference.
            is_called: True if it is called here. What only ``.*`` covers counts where it is called:
                the rest of a module may be classes of errors and constants.
        """
        if path in self.harmless:
            return None
        if path in self.paths:
            return path
        if not is_called:
            return None
        made, separator, method = path.partition("().")
        if not separator:
            return path if self._covers(path) else None
        return path if method and (f"{made}().*" in self.paths or self._covers(made)) else None

    def _covers(self, path: str) -> bool:
        if path in self.paths:
            return True
        if path in self.harmless or path.endswith(
            ("Error", "Exception", "Expired", "Warning", "Timeout")
        ):
            return False
        return any(
            f"{path[:at]}.*" in self.paths for at, character in enumerate(path) if character == "."
        )


CLOCK = Vocabulary(
    _in(
        "time",
        "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time "
        "process_time_ns thread_time thread_time_ns",
    )
    | _in("time", "clock_gettime clock_gettime_ns")
    | _in("datetime.datetime", "now utcnow today")
    | _in("datetime.date", "today")
    | _in("django.utils.timezone", "now localdate")
    | _in("pendulum", "now today tomorrow yesterday")
    | _in("arrow", "now utcnow")
)
CLOCK_WITHOUT_ARGUMENTS = _paths(
    "time.localtime time.gmtime time.ctime time.asctime django.utils.timezone.localtime arrow.get"
)
"""Functions that ask the clock only if they are given no time."""

CHANCE = Vocabulary(
    _paths("random.* secrets.* numpy.random.* os.urandom os.getrandom random.SystemRandom")
    | _in(
        "random",
        "random randint randrange uniform choice choices sample shuffle gauss getrandbits "
        "randbytes betavariate expovariate",
    )
    | _in("secrets", "token_hex token_bytes token_urlsafe randbelow randbits choice")
    | _in("uuid", "uuid1 uuid4 uuid6 uuid7 uuid8"),
    harmless=_paths(
        "secrets.compare_digest random.Random numpy.random.default_rng numpy.random.Generator"
    ),
)
SEEDED = frozenset({"random.Random", "numpy.random.default_rng"})
"""Generators that repeat themselves if they are given a seed."""

ENVIRONMENT = Vocabulary(
    _in(
        "os",
        "environ environb getenv getenvb getpid getppid getuid geteuid getlogin uname cpu_count "
        "getcwd getcwdb getloadavg",
    )
    | _in("os.path", "expanduser expandvars")
    | _in("sys", "argv orig_argv path")
    | _in("socket", "gethostname getfqdn")
    | _in("pathlib.Path", "cwd home")
    | _in("threading", "get_ident get_native_id current_thread active_count")
    | _in("uuid", "getnode")
    | _in("locale", "getlocale getdefaultlocale")
    | _paths(
        "platform.* getpass.getuser tempfile.gettempdir multiprocessing.cpu_count "
        "multiprocessing.current_process"
    )
)

OUTSIDE = Vocabulary(
    _in("builtins", "open input breakpoint")
    | _in("io", "open open_code")
    | _in(
        "os",
        "open read write close listdir scandir walk stat lstat access remove unlink mkdir makedirs "
        "rmdir removedirs rename replace",
    )
    | _in(
        "os",
        "link symlink readlink chmod chown chdir truncate utime system popen "
        "startfile kill killpg pipe fsync",
    )
    | _in(
        "os.path",
        "exists lexists isfile isdir islink ismount getsize getmtime "
        "getatime getctime realpath samefile",
    )
    | frozenset({"shutil.*", "glob.glob", "glob.iglob", "sys.stdin", "linecache.getline"})
    | _in(
        "tempfile",
        "TemporaryFile NamedTemporaryFile TemporaryDirectory SpooledTemporaryFile mkstemp mkdtemp",
    )
    | _paths("subprocess.* asyncio.create_subprocess_exec asyncio.create_subprocess_shell")
    | _in("asyncio", "open_connection start_server open_unix_connection start_unix_server")
    | _in(
        "socket",
        "socket create_connection create_server socketpair getaddrinfo gethostbyname gethostbyaddr",
    )
    | _paths(
        "urllib.request.* http.client.HTTPConnection http.client.HTTPSConnection ftplib.* "
        "smtplib.* imaplib.*"
    )
    | _in("requests", "get post put patch delete head options request Session session")
    | _in("httpx", "get post put patch delete head options request stream Client AsyncClient")
    | _in("aiohttp", "ClientSession request")
    | _in("urllib3", "PoolManager request HTTPConnectionPool HTTPSConnectionPool")
    | _in("psycopg", "connect Connection.connect AsyncConnection.connect")
    | _paths(
        "psycopg.Connection().* psycopg.AsyncConnection().* psycopg.Cursor().* "
        "psycopg.AsyncCursor().*"
    )
    | _paths(
        "sqlite3.Connection().* asyncpg.Connection().* sqlalchemy.Connection().* "
        "sqlalchemy.Engine().*"
    )
    | _paths("sqlalchemy.ext.asyncio.AsyncConnection().* sqlalchemy.ext.asyncio.AsyncEngine().*")
    | _in(
        "psycopg_pool",
        "ConnectionPool AsyncConnectionPool NullConnectionPool AsyncNullConnectionPool",
    )
    | _paths(
        "psycopg2.connect psycopg2.pool.* asyncpg.connect asyncpg.create_pool sqlite3.connect "
        "pymysql.connect"
    )
    | _paths("mysql.connector.connect pyodbc.connect duckdb.connect aiosqlite.connect")
    | _paths(
        "sqlalchemy.create_engine sqlalchemy.ext.asyncio.create_async_engine sqlalchemy.orm.Session"
    )
    | _paths(
        "sqlalchemy.orm.sessionmaker sqlalchemy.ext.asyncio.async_sessionmaker "
        "sqlalchemy.ext.asyncio.AsyncSession"
    )
    | _paths(
        "redis.Redis redis.from_url redis.asyncio.Redis redis.asyncio.from_url pymongo.MongoClient"
    )
    | _paths("boto3.client boto3.resource boto3.Session paramiko.SSHClient kafka.KafkaProducer")
    | _paths("openai.OpenAI openai.AsyncOpenAI anthropic.Anthropic anthropic.AsyncAnthropic")
    | frozenset({"aiofiles.open", "anyio.open_file", "anyio.run_process", "anyio.connect_tcp"})
)
MANAGERS = frozenset(
    {
        "get", "filter", "all", "exclude", "create", "get_or_create", "update_or_create",
        "bulk_create", "count", "first", "last", "aget", "acreate", "raw",
    }
)  # fmt: skip
"""Queries of Django, in the manner of ``Order.objects.get``."""

FILE_METHODS = frozenset({"read_text", "write_text", "read_bytes", "write_bytes"})
"""Methods that only files have, whatever they are called on."""

PATH_METHODS = frozenset(
    {
        "open", "exists", "is_file", "is_dir", "is_symlink", "stat", "lstat", "iterdir", "glob",
        "rglob", "walk", "mkdir", "rmdir", "unlink", "rename", "replace", "touch", "chmod",
        "resolve", "readlink", "symlink_to", "hardlink_to", "owner", "expanduser", "samefile",
    }
)  # fmt: skip
"""Methods of `pathlib.Path` that look at the disk."""

SLEEPING = Vocabulary(frozenset({"time.sleep", "gevent.sleep", "eventlet.sleep", "trio.sleep"}))

THREADS = Vocabulary(
    _paths(
        "threading.* multiprocessing.* _thread.start_new_thread concurrent.futures.* os.fork "
        "os.forkpty"
    )
    | _in("asyncio", "to_thread run run_coroutine_threadsafe new_event_loop Runner")
    | _in("asyncio.get_running_loop()", "run_in_executor call_soon_threadsafe")
    | _in("asyncio.get_event_loop()", "run_in_executor call_soon_threadsafe run_until_complete")
    | _paths(
        "anyio.to_thread.run_sync anyio.run trio.run asgiref.sync.sync_to_async "
        "asgiref.sync.async_to_sync"
    )
    | _paths(
        "starlette.concurrency.run_in_threadpool fastapi.concurrency.run_in_threadpool "
        "joblib.Parallel"
    ),
    harmless=ENVIRONMENT.paths
    | frozenset({"concurrent.futures.wait", "concurrent.futures.as_completed", "threading.local"}),
)

OUTPUT = Vocabulary(
    _paths("builtins.print warnings.warn rich.print structlog.get_logger logging.getLogger")
    | _in("sys", "stdout stderr")
    | _in("logging", "debug info warning error exception critical log")
)

IDENTITY = _paths(
    "builtins.id builtins.hash object.__repr__ builtins.object.__repr__ builtins.object.__hash__"
)

SCHEDULED = ("create_task", "ensure_future")
"""Functions that make a task of a coroutine."""

PGFLOW = {
    module: frozenset(names.split())
    for module, names in {
        "pgflow": "App AsyncApp Signal Retries as_completed authority because call continue_as_new "
        "decisions deprecate_patch effects emit entities idempotency_key in_workflow inline lock "
        "logger map now patched random read run_child run_info schedule send set_labels set_state "
        "sleep start_child step sync transaction upcaster updates uuid workflow",
        "pgflow.authority": "Obligation charge discharge gate owe transfer waive",
        "pgflow.decisions": "Choice Decision decision",
        "pgflow.effects": "Absent Accepted Confirmed StillUnknown effect saga",
        "pgflow.entities": "entity query update",
        "pgflow.updates": "execute_update serve",
    }.items()
}
"""Names of pgflow, by the module that offers them."""

WAITING = frozenset(
    {
        "pgflow.sleep", "pgflow.run_child", "pgflow.map", "pgflow.authority.gate",
        "pgflow.Signal().wait", "pgflow.call", "pgflow._flow.dynamic.call",
        "pgflow.start_child", "pgflow._flow.children.start_child", "pgflow._flow.many.map",
        "pgflow._flow.timers.sleep", "pgflow._flow.children.run_child",
        "pgflow._flow.authority.gate.gate", "pgflow.entities.query",
        "pgflow._flow.entities.query", "pgflow.updates.serve", "pgflow._flow.serving.serve",
        "pgflow.send", "pgflow._flow.messages.send", "pgflow.updates.execute_update",
        "pgflow._flow.messages.execute_update", "pgflow._flow.signals.Signal().wait",
        "asyncio.sleep", "asyncio.wait", "asyncio.wait_for",
    }
)  # fmt: skip
"""Coroutine functions that do nothing unless they are awaited."""

OF_WORKFLOWS = frozenset(
    f"pgflow.{name}"
    for name in [
        "authority.gate", "sync.gate", "sleep", "sync.sleep", "run_child", "sync.run_child",
        "start_child", "sync.start_child", "updates.serve", "sync.serve",
        "updates.execute_update", "sync.execute_update", "Signal().wait", "Signal().sync.wait",
    ]
)  # fmt: skip
"""Functions that wait, or start what a run waits for: only code of a workflow can call them."""

SYNC_TWINS = {
    "pgflow.start_child": "pgflow.sync.start_child",
    "pgflow.sleep": "pgflow.sync.sleep",
    "pgflow.call": "pgflow.sync.call",
    "pgflow.run_child": "pgflow.sync.run_child",
    "pgflow.map": "pgflow.sync.map",
    "pgflow.authority.gate": "pgflow.sync.gate",
    "pgflow.entities.query": "pgflow.sync.query",
    "pgflow.send": "pgflow.sync.send",
    "pgflow.updates.serve": "pgflow.sync.serve",
    "pgflow.updates.execute_update": "pgflow.sync.execute_update",
    "pgflow.Signal().wait": "pgflow.Signal().sync.wait",
}
"""Functions that sync workflows call, by the path of the one that async workflows await."""

ASYNC_TWINS = {twin: path for path, twin in SYNC_TWINS.items()}
"""The same the other way round."""


def _names_in(*vocabularies: Vocabulary) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for path in (
        path
        for vocabulary in vocabularies
        for path in vocabulary.paths
        if not path.endswith(".*") and "(" not in path
    ):
        module, _, name = path.rpartition(".")
        found.setdefault(module, set()).add(name)
    return {module: frozenset(names) for module, names in found.items() if module != "builtins"}


EXPORTED = {
    **_names_in(CLOCK, CHANCE, ENVIRONMENT, OUTSIDE, SLEEPING, THREADS, OUTPUT),
    **PGFLOW,
    "datetime": frozenset({"datetime", "date", "timedelta", "timezone", "UTC"}),
    "pathlib": frozenset({"Path"}),
    "threading": frozenset({"Thread", "Timer", "get_ident", "current_thread"}),
}
"""Names that ``from M import *`` binds and that a rule would want to know, by M."""
