"""Providers for command-line agents: ``claude:``, ``codex:`` and ``gemini:``.

Each runs the program of that name with the prompt on standard input, and reads the events that it
prints, one JSON object a line. From them it takes the answer, the model, the tokens, the cost if
the program reports it, and the session. Text after the colon is added to the command, as in
``claude:--permission-mode acceptEdits``.

A field of a file becomes an argument only in the form ``--name=value``, so that a value is never
taken for an option. Cost and tokens of a failed turn are recorded too.

Formats: `claude -p --output-format stream-json`, `codex exec --json` and `gemini --output-format
stream-json`, as their makers document them. Events of unknown kinds are ignored.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Final

from pydantic import JsonValue

from pgflow.declare.durable.processes import Ended
from pgflow.declare.durable.providers import (
    Reply,
    Turn,
    TurnFailed,
    Word,
    run_command,
    why_ended,
)
from pgflow.errors import InvalidArgument

_MOST_BYTES: Final = 16 << 20
"""Longest stream of events that is read whole, in bytes; of a longer one, its end is read."""

_MOST_OF_A_CALL: Final = 300
"""Characters of a tool's use that those see who watch."""

_EFFORTS_OF_CLAUDE: Final[Mapping[str | None, str]] = {
    "minimal": "low",
    "ultra": "max",
    "persistent": "max",
}
"""Efforts that Claude Code does not know, and the nearest one that it knows, as Archon has them."""

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    """Outcome of a turn, read from its events.

    Args:
        reply: The answer and its cost.
        error: Reason for a missing answer; None if the turn has one.
        is_over: True if the last event has come.
    """

    reply: Reply
    error: str | None = None
    is_over: bool = False


class Preset(ABC):
    """A command-line agent.

    Args:
        argument: Further arguments of its command.
    """

    program: ClassVar[str]
    """Name of the program, which is looked for in ``PATH``."""
    honours: frozenset[str] = frozenset()

    def __init__(self, argument: str) -> None:
        try:
            self.more = shlex.split(argument)
        except ValueError as error:
            raise InvalidArgument(
                f"{self.program}:{argument} is not a command line: {error}"
            ) from error

    @abstractmethod
    def arguments(self, turn: Turn, schema_file: str | None) -> list[str]:
        """Return the arguments of the program for a turn.

        Args:
            turn: The turn.
            schema_file: File with the schema that the answer must fit, if the program wants one.
        """

    @abstractmethod
    def words(self, event: Event) -> Iterator[tuple[Word, str]]:
        """Yield what an event lets those see who watch: words, and tools that are used."""

    @abstractmethod
    def hear(self, events: Iterator[Event]) -> Heard:
        """Return the outcome of these events."""

    def schema_file(self, turn: Turn) -> AbstractContextManager[str | None]:
        """Keep the schema in a file while the turn is taken; None where no file is wanted."""
        del turn
        return nullcontext(None)

    async def take(self, turn: Turn) -> Reply:
        """Run the program once.

        Raises:
            TurnFailed: It did not answer. The error has the cost until then.
        """
        with self.schema_file(turn) as schema_file:
            argv = [self.program, *self.arguments(turn, schema_file)]

            def watch(line: str) -> None:
                for event in _events([line]):
                    for kind, text in self.words(event):
                        turn.tell(kind, text)

            ended = await run_command(argv, turn, {}, _MOST_BYTES, watch)
        return self._judge(turn, ended, self.hear(_events(_lines(ended))))

    def _judge(self, turn: Turn, ended: Ended, heard: Heard) -> Reply:
        """Return the answer of a program that has ended."""
        if heard.error is not None:
            raise TurnFailed(f"{self.program} failed: {heard.error}", spent=heard.reply)
        is_silent = ended.timed_out and not heard.is_over and not heard.reply.text.strip()
        if is_silent or (ended.status and not ended.timed_out):
            raise TurnFailed(why_ended(self.program, turn, ended), spent=heard.reply)
        if not heard.is_over and not ended.timed_out:
            raise TurnFailed(f"{self.program} ended without a result", spent=heard.reply)
        return heard.reply


class Claude(Preset):
    """Claude Code, by ``claude -p``."""

    program = "claude"
    honours = frozenset(
        {
            "allowed_tools", "denied_tools", "maxBudgetUsd", "mcp", "agents", "systemPrompt",
            "settingSources", "betas", "fallbackModel", "context",
        }
    )  # fmt: skip

    def arguments(self, turn: Turn, schema_file: str | None) -> list[str]:
        """Return the arguments for a turn."""
        del schema_file
        agent = turn.agent
        words = {
            "model": _word(agent.get("model")),
            "effort": _EFFORTS_OF_CLAUDE.get(effort := _word(agent.get("effort")), effort),
            "fallback-model": _word(agent.get("fallbackModel")),
            "system-prompt": _word(agent.get("systemPrompt")),
            "mcp-config": _word(agent.get("mcp")),
            "setting-sources": _joined(agent.get("settingSources")),
            "betas": _joined(agent.get("betas")),
            "disallowedTools": _joined(agent.get("denied_tools")) or None,
            "max-budget-usd": None if turn.max_usd is None else f"{turn.max_usd:g}",
            "json-schema": None if turn.schema is None else json.dumps(turn.schema),
            "agents": json.dumps(agent["agents"]) if agent.get("agents") else None,
            "resume": turn.session,
        }
        return [
            "-p",
            "--output-format=stream-json",
            "--verbose",
            *_options(words),
            *(("--strict-mcp-config",) if words["mcp-config"] else ()),
            *(("--fork-session",) if turn.session else ()),
            *_tools(agent.get("allowed_tools")),
            *self.more,
        ]

    def words(self, event: Event) -> Iterator[tuple[Word, str]]:
        """Yield its words and tools."""
        message = event.get("message") if event.get("type") == "assistant" else None
        for part in _parts_of(message):
            if part.get("type") == "text":
                yield "assistant", str(part.get("text") or "")
            elif part.get("type") == "tool_use":
                yield _used(part.get("name"), part.get("input"))

    def hear(self, events: Iterator[Event]) -> Heard:
        """Return the outcome of its events."""
        heard = Heard(Reply(""))
        for event in events:
            match event.get("type"):
                case "system" if event.get("subtype") == "init":
                    heard = _with(heard, model=event.get("model"), session=event.get("session_id"))
                case "assistant":
                    message = event.get("message")
                    heard = _with(heard, text=_text_of(message) or heard.reply.text)
                case "result":
                    heard = self._end(heard, event)
        return heard

    def _end(self, heard: Heard, event: Event) -> Heard:
        """Return the outcome with the last event, which has the books of the turn."""
        has_value = event.get("structured_output") is not None
        text = event.get("result")
        heard = _with(
            heard,
            text=text if isinstance(text, str) else heard.reply.text,
            value=event.get("structured_output"),
            has_value=has_value,
            usd=_decimal(event.get("total_cost_usd")),
            tokens=_tokens(
                event.get("usage"),
                "input_tokens",
                "output_tokens",
                "cache_creation_input_tokens",
                "cache_read_input_tokens",
            ),
            session=event.get("session_id") or heard.reply.session,
        )
        error = None
        if event.get("is_error") or event.get("subtype") != "success":
            error = f"{event.get('subtype')}: {heard.reply.text[:2000]}".rstrip(": ")
        return replace(heard, error=error, is_over=True)


_TOOLS_OF_CODEX: Final = frozenset({"command_execution", "mcp_tool_call", "web_search"})


class Codex(Preset):
    """Codex, by ``codex exec``. It does not say what a turn costs, only its tokens."""

    program = "codex"
    honours = frozenset({"context"})

    def arguments(self, turn: Turn, schema_file: str | None) -> list[str]:
        """Return the arguments for a turn."""
        effort = _word(turn.agent.get("effort"))
        words = {
            "model": _word(turn.agent.get("model")),
            "config": None if effort is None else f"model_reasoning_effort={json.dumps(effort)}",
            "output-schema": schema_file,
        }
        goes_on = ("resume", turn.session) if turn.session else ()
        return [
            "exec",
            "--json",
            "--skip-git-repo-check",
            *_options(words),
            *self.more,
            *goes_on,
            "-",
        ]

    @contextmanager
    def schema_file(self, turn: Turn) -> Iterator[str | None]:
        """Keep the schema in a file, since the program reads it from one."""
        if turn.schema is None:
            yield None
            return
        with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="pgflow-schema-") as file:
            json.dump(turn.schema, file)
            file.flush()
            yield file.name

    def words(self, event: Event) -> Iterator[tuple[Word, str]]:
        """Yield its words and tools."""
        item = event.get("item")
        if not isinstance(item, dict):
            return
        kind = item.get("type")
        if kind == "agent_message" and event.get("type") == "item.completed":
            yield "assistant", str(item.get("text") or "")
        elif kind in _TOOLS_OF_CODEX and event.get("type") == "item.started":
            yield _used(item.get("tool") or kind, item.get("command") or item.get("arguments"))

    def hear(self, events: Iterator[Event]) -> Heard:
        """Return the outcome of its events."""
        heard = Heard(Reply(""))
        for event in events:
            match event.get("type"):
                case "thread.started":
                    heard = _with(heard, session=event.get("thread_id"))
                case "item.completed":
                    item = event.get("item")
                    if isinstance(item, dict) and item.get("type") == "agent_message":
                        heard = _with(heard, text=str(item.get("text") or ""))
                case "turn.completed":
                    tokens = _tokens(event.get("usage"), "input_tokens", "output_tokens")
                    heard = _with(heard, tokens=heard.reply.tokens + tokens)
                    heard = replace(heard, error=None, is_over=True)
                case "turn.failed" | "error":
                    heard = replace(heard, error=_message(event), is_over=True)
        return heard


class Gemini(Preset):
    """Gemini CLI. It does not say what a turn costs, only its tokens."""

    program = "gemini"

    def arguments(self, turn: Turn, schema_file: str | None) -> list[str]:
        """Return the arguments for a turn."""
        del schema_file
        words = {"model": _word(turn.agent.get("model"))}
        return ["--output-format=stream-json", *_options(words), *self.more]

    def words(self, event: Event) -> Iterator[tuple[Word, str]]:
        """Yield its words and tools."""
        if event.get("type") == "message" and event.get("role") == "assistant":
            yield "assistant", str(event.get("content") or "")
        elif event.get("type") == "tool_use":
            yield _used(event.get("tool_name"), event.get("parameters"))

    def hear(self, events: Iterator[Event]) -> Heard:
        """Return the outcome of its events, with the pieces of its answer joined."""
        heard, said = Heard(Reply("")), ""
        for event in events:
            match event.get("type"):
                case "init":
                    heard = _with(heard, model=event.get("model"), session=event.get("session_id"))
                case "message" if event.get("role") == "assistant":
                    words = str(event.get("content") or "")
                    said = said + words if event.get("delta") else words
                case "tool_use":
                    said = ""  # its answer is what it says after the last of its tools
                case "result":
                    tokens = _tokens(event.get("stats"), "total_tokens")
                    error = None if event.get("status") == "success" else _message(event)
                    heard = replace(_with(heard, tokens=tokens), error=error, is_over=True)
        return _with(heard, text=said)


def _lines(ended: Ended) -> Iterable[bytes]:
    """Return the lines that a program has printed."""
    return bytes(ended.stdout.text).splitlines()


def _used(name: Any, asked: Any) -> tuple[Word, str]:
    """Return the tool that is used, and its subject."""
    what = f" {json.dumps(asked, ensure_ascii=False)}" if asked else ""
    return "tool", f"{name}{what}"[:_MOST_OF_A_CALL]


def _events(lines: Iterable[bytes | str]) -> Iterator[Event]:
    """Yield the events of lines, and skip other lines."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _with(heard: Heard, **changed: Any) -> Heard:
    """Return the outcome with some fields of its answer replaced."""
    for name in ("model", "session"):
        if name in changed and not isinstance(changed[name], str):
            changed[name] = getattr(heard.reply, name)
    return replace(heard, reply=replace(heard.reply, **changed))


def _options(words: Mapping[str, str | None]) -> list[str]:
    """Arguments of the options that have a value."""
    return [f"--{name}={value}" for name, value in words.items() if value is not None]


def _tools(names: JsonValue) -> list[str]:
    """Arguments that leave an agent these tools, such as ``Read`` or ``Bash(git:*)``, and no
    other.
    """
    if not isinstance(names, list):
        return []
    known = dict.fromkeys(str(name).partition("(")[0] for name in names)
    return [f"--tools={','.join(known)}", f"--allowedTools={','.join(map(str, names))}"]


def _word(value: JsonValue) -> str | None:
    return value if isinstance(value, str) and value else None


def _joined(value: JsonValue) -> str | None:
    return ",".join(map(str, value)) if isinstance(value, list) else None


def _parts_of(message: Any) -> list[Event]:
    """Return the parts of a message."""
    content = message.get("content") if isinstance(message, dict) else None
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _text_of(message: Any) -> str:
    """Return the words of a message, without its calls of tools."""
    texts = (part for part in _parts_of(message) if part.get("type") == "text")
    return "".join(str(part.get("text") or "") for part in texts)


def _message(event: Event) -> str:
    """Return the reason that an event gives for a failure."""
    error = event.get("error", event.get("message"))
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or event.get("status") or "it did not say why")[:2000]


def _decimal(value: Any) -> Decimal:
    """Return a cost in US dollars; 0 if the value is not one."""
    try:
        cost = Decimal(str(value))
    except InvalidOperation:
        return Decimal(0)
    return cost if cost.is_finite() and cost > 0 else Decimal(0)


def _tokens(usage: Any, *names: str) -> int:
    """Return the sum of some counts of tokens."""
    counts = [usage.get(name) for name in names] if isinstance(usage, dict) else []
    return sum(n for n in counts if isinstance(n, int) and not isinstance(n, bool) and n > 0)
