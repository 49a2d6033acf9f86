"""Providers: who takes the turns of agents. They are plug-ins, named ``NAME:ARGUMENT``.

``cmd:COMMAND`` runs a command that gets the prompt on standard input and answers on standard
output. ``python:MODULE:FUNCTION`` calls a function with the `Turn`. ``stub:FILE`` answers from a
file, for rehearsals. ``claude:``, ``codex:`` and ``gemini:`` run the agent of that name
(`pgflow.declare.durable.presets`), and ``pydantic-ai:MODEL`` asks a model
(`pgflow.declare.durable.models`). Others come from entry points of the group ``pgflow.providers``:
each is a function that is called with the argument and returns a `Provider`.

What a file asks of its agent and a provider cannot do is found before a run begins
(`pgflow.declare.durable.limits`).
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import JsonValue

from pgflow.declare.durable.processes import Ended, NotStarted, Order, run
from pgflow.errors import InvalidArgument

GROUP: Final = "pgflow.providers"
"""Entry points of this group are providers."""

_MOST_BYTES: Final = 4 << 20
"""Longest answer of a command."""

_LONGEST_LINE: Final = 1 << 20
"""Most bytes of a line that is reported while a command is at work. Of a longer one, its end is."""

log = logging.getLogger("pgflow")


class TurnFailed(Exception):
    """An agent did not take its turn; the message is the node's error, and says whether to try
    again.

    Args:
        message: The node's error.
        spent: Reply that never was one, with the cost of the turn until it failed.
    """

    def __init__(self, message: str, *, spent: Reply | None = None) -> None:
        super().__init__(message)
        self.spent = spent


Word: TypeAlias = Literal["assistant", "tool", "stderr"]
"""Kind of what an agent lets out while it is at work: words of its own, the use of a tool, or a
complaint of its command.
"""


def _to_nobody(kind: Word, text: str) -> None:
    del kind, text


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of an agent.

    Args:
        prompt: Text for the agent.
        node: Id of the node.
        key: Key of the step, which names the rounds around it.
        cwd: Working folder.
        env: Environment for its programs.
        agent: Fields that the file gives for the agent: ``model``, ``effort``, and others.
        schema: JSON schema that the answer must fit, if there is one.
        idle_seconds: Longest silence.
        max_usd: Most that it may cost, if the file limits it.
        secrets: Values of its environment that must not be recorded.
        session: Session of an earlier turn to continue; None for a new one.
        tell: Function that reports words and tools to watchers while the agent is at work, from any
            thread. They are not kept.
    """

    prompt: str
    node: str
    key: str
    cwd: str
    env: Mapping[str, str]
    agent: Mapping[str, JsonValue] = field(default_factory=dict)
    schema: JsonValue = None
    idle_seconds: float = 1800.0
    max_usd: float | None = None
    secrets: tuple[str, ...] = ()
    session: str | None = None
    tell: Callable[[Word, str], None] = _to_nobody


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of an agent.

    Args:
        text: Its words.
        value: Its answer as a value, if ``has_value``.
        has_value: True if it gave a value and not only words.
        model: Model that answered.
        usd: Its cost.
        tokens: Number of tokens read and written.
        session: Session in which a later turn can go on, if the agent has one.
    """

    text: str
    value: JsonValue = None
    has_value: bool = False
    model: str | None = None
    usd: Decimal = Decimal(0)
    tokens: int = 0
    session: str | None = None


@runtime_checkable
class Provider(Protocol):
    """Takes turns of agents.

    Attributes:
        honours: Fields of a node's agent that it obeys.
    """

    honours: frozenset[str]

    async def take(self, turn: Turn) -> Reply:
        """Take one turn.

        Raises:
            TurnFailed: It was not taken.
        """


class CommandProvider:
    """A command that reads a prompt and prints an answer."""

    honours: frozenset[str] = frozenset()

    def __init__(self, argument: str) -> None:
        self.argv = shlex.split(argument)
        if not self.argv:
            raise InvalidArgument("cmd: names no command: write cmd:COMMAND, such as 'cmd:llm'")

    def check(self, cwd: str) -> None:
        """Look for the program.

        Args:
            cwd: Folder in which it would run.

        Raises:
            InvalidArgument: There is none.
        """
        name = self.argv[0]
        file = str(Path(cwd, name)) if os.sep in name else name
        if shutil.which(file) is None:
            raise InvalidArgument(f"cmd:{name}: cannot find program {name!r} for {cwd}")

    async def take(self, turn: Turn) -> Reply:
        """Run the command once."""
        told = {}
        if isinstance(model := turn.agent.get("model"), str):
            told["PGFLOW_MODEL"] = model
        if turn.max_usd is not None:
            told["PGFLOW_MAX_USD"] = f"{turn.max_usd:g}"
        hear = partial(turn.tell, "assistant")
        ended = await run_command(self.argv, turn, told, _MOST_BYTES, hear)
        text = ended.stdout.text.decode("utf-8", "replace").replace("\0", "\ufffd")
        if ended.stdout.size > _MOST_BYTES:
            raise TurnFailed(f"{self.argv[0]} wrote more than {_MOST_BYTES >> 20} MiB")
        if ended.timed_out and text.strip():
            return Reply(text)
        if ended.timed_out or ended.status:
            raise TurnFailed(why_ended(self.argv[0], turn, ended))
        return Reply(text)


class _Lines:
    """Splits a stream into lines, and passes each on as soon as it is whole.

    Args:
        hear: Called with each line that is not empty. Its errors are logged, not raised.
    """

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._rest = b""

    def put(self, chunk: bytes) -> None:
        """Take more of the stream."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-_LONGEST_LINE:]
        for line in lines:
            if line.strip():
                try:
                    self._hear(line.decode("utf-8", "replace"))
                except Exception as error:  # noqa: BLE001 - it is only for those who watch
                    log.debug("cannot report the words of an agent: %s", error)


async def run_command(
    argv: Sequence[str],
    turn: Turn,
    environment: Mapping[str, str],
    most_bytes: int,
    hear: Callable[[str], None],
) -> Ended:
    """Run a command for a turn, to its end: the prompt is its standard input.

    Args:
        argv: The program and its arguments.
        turn: The turn.
        environment: Variables of its environment, beside those of the turn.
        most_bytes: Bytes of its output that are kept.
        hear: Called with each line that it prints, as it comes.

    Raises:
        TurnFailed: It cannot be started.
    """
    order = Order(
        argv,
        turn.cwd,
        {**turn.env, "PGFLOW_NODE": turn.node, "PGFLOW_STEP": turn.key, **environment},
        stdin=turn.prompt.encode("utf-8", "replace"),
        idle_seconds=turn.idle_seconds,
        most_bytes=most_bytes,
        secrets=turn.secrets,
        hear=_Lines(hear).put,
        complain=_Lines(partial(turn.tell, "stderr")).put,
    )
    try:
        return await run(order)
    except NotStarted as error:
        raise TurnFailed(str(error)) from error


def why_ended(name: str, turn: Turn, ended: Ended) -> str:
    """Return the reason for which a command has ended without an answer."""
    if ended.timed_out:
        return f"{name} timed out after {turn.idle_seconds:g}s of silence"
    complaint = ended.stderr.text.decode("utf-8", "replace").strip()[-2000:]
    return f"{name} exited with code {ended.status}: {complaint}"


class FunctionProvider:
    """A function of Python, ``async def`` or ``def``, that returns text, a value, or a `Reply`."""

    honours: frozenset[str] = frozenset()

    def __init__(self, argument: str) -> None:
        module, _, name = argument.partition(":")
        if not module or not name:
            raise InvalidArgument(f"python:{argument} names no function: write python:MODULE:NAME")
        try:
            self.function: Callable[[Turn], Any] = getattr(importlib.import_module(module), name)  # noqa: TID251 - named at the start of the run
        except (ImportError, AttributeError) as error:
            raise InvalidArgument(f"python:{argument} cannot be found: {error}") from error
        self.honours = frozenset(getattr(self.function, "honours", ()))

    async def take(self, turn: Turn) -> Reply:
        """Call the function; what it raises is the node's error. If it neither returns nor reports
        words for too long, the words reported so far are its answer.
        """
        told: list[str] = []
        limit = asyncio.timeout(turn.idle_seconds)
        try:
            async with limit:
                returned = await self._call(replace(turn, tell=_heard(turn, limit, told)))
        except Exception as error:
            if not limit.expired():
                raise TurnFailed(f"{type(error).__name__}: {error}") from error
            returned = "".join(told)
            if not returned.strip():
                silent = f"the function timed out after {turn.idle_seconds:g}s of silence"
                raise TurnFailed(silent) from error
        if isinstance(returned, Reply):
            return returned
        return Reply(returned) if isinstance(returned, str) else Reply("", returned, has_value=True)

    async def _call(self, turn: Turn) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(turn)
        return await asyncio.to_thread(self.function, turn)


def _heard(turn: Turn, limit: asyncio.Timeout, told: list[str]) -> Callable[[Word, str], None]:
    """Return a `Turn.tell` that also keeps the words and extends the time limit."""
    loop = asyncio.get_running_loop()

    def put_off() -> None:
        with suppress(RuntimeError):  # the turn has ended
            limit.reschedule(loop.time() + turn.idle_seconds)

    def tell(kind: Word, text: str) -> None:
        if kind == "assistant":
            told.append(text)
        with suppress(RuntimeError):  # the worker has ended, and left this thread behind
            loop.call_soon_threadsafe(put_off)
        turn.tell(kind, text)

    return tell


class StubProvider:
    """Answers that are made up, by node. The run has them in its settings, as they were at its
    start.
    """

    honours = frozenset(
        {
            "allowed_tools", "denied_tools", "sandbox", "hooks", "maxBudgetUsd", "mcp", "skills",
            "agents", "pi", "systemPrompt", "settingSources", "betas", "context", "persist_session",
            "persist_sessions", "webSearchMode",
        }
    )  # fmt: skip

    def __init__(self, argument: str) -> None:
        del argument

    async def take(self, turn: Turn) -> Reply:
        """Fail: a node that has a stub is never asked for."""
        raise TurnFailed(f"Missing reachable stub for node '{turn.node}'")


_OWN: Final[dict[str, Callable[[str], Provider]]] = {
    "cmd": CommandProvider,
    "python": FunctionProvider,
    "stub": StubProvider,
}

_PLACES: Final = {
    "claude": "pgflow.declare.durable.presets:Claude",
    "codex": "pgflow.declare.durable.presets:Codex",
    "gemini": "pgflow.declare.durable.presets:Gemini",
    "pydantic-ai": "pgflow.declare.durable.models:ModelProvider",
}
"""Providers that are imported when one is asked for."""


def make_provider(spec: str) -> Provider:
    """Return the provider that ``NAME:ARGUMENT`` names.

    Raises:
        InvalidArgument: The provider is unknown, or cannot be made of the argument.
    """
    name, _, argument = spec.partition(":")
    if name in _OWN:
        return _OWN[name](argument)
    if name in _PLACES:
        module, _, attribute = _PLACES[name].partition(":")
        made: Provider = getattr(importlib.import_module(module), attribute)(argument)  # noqa: TID251 - named at the start of the run
        return made
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted({*_OWN, *_PLACES, *found}))
        raise InvalidArgument(f"unknown provider {name!r}: known are {known}")
    made = found[name].load()(argument)
    if not isinstance(made, Provider):
        raise InvalidArgument(f"provider {name!r} takes no turns: it has no honours and take()")
    return made


def provider_of(spec: str) -> Provider:
    """Return the same for a turn that is taken now.

    Raises:
        TurnFailed: This worker does not have it.
    """
    try:
        return make_provider(spec)
    except InvalidArgument as error:
        raise TurnFailed(str(error)) from error


ALLOWED: Final = (
    "PATH", "HOME", "LANG", "LANGUAGE", "TMPDIR", "TZ", "TERM", "USER", "LOGNAME", "SHELL",
    "LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT",
    "LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME",
)  # fmt: skip
"""Variables of the worker's environment that every program gets. Those of the locale are of
locale(7).
"""

NEVER: Final = frozenset({"PGFLOW_DSN", "DATABASE_URL", "PGPASSWORD"})
"""Variables that no program gets: the connection to the database."""


def named(names: Iterable[str]) -> dict[str, str]:
    """Return the variables of these names, as this process has them now, but for the connection to
    the database.
    """
    found = {name: os.environ.get(name) for name in names if name not in NEVER}
    return {name: value for name, value in found.items() if value is not None}


def secrets_of(names: Iterable[str]) -> dict[str, str]:
    """Return the secrets that programs get, read at the moment of the call.

    Raises:
        KeyError: The worker does not have one.
    """
    wanted = [name for name in names if name not in NEVER]
    found = known_secrets(wanted)
    for name in wanted:
        if name not in found:
            raise KeyError(name)
    return found


def known_secrets(names: Iterable[str]) -> dict[str, str]:
    """Return those of them that this process has, without empty ones."""
    return {name: value for name, value in named(names).items() if value}
