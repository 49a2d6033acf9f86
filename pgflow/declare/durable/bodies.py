"""Work of nodes: what the body of a step does. Nothing here decides what happens next.

A body answers a `Done`, also where the node failed: that is an outcome like any other, and the
graph says what follows from it. Only trouble of the machine is raised.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from pgflow.declare.durable import live
from pgflow.declare.durable.folders import Folders, write_whole
from pgflow.declare.durable.frozen import Settings
from pgflow.declare.durable.logfile import LogFile, tail
from pgflow.declare.durable.long import IN_JOURNAL, KIND, MOST, Long, beginning, restored, shortened
from pgflow.declare.durable.processes import Ended, NotStarted, Order, TooLong, run
from pgflow.declare.durable.providers import ALLOWED, named, secrets_of
from pgflow.declare.durable.schemas import certified
from pgflow.declare.graph import Node, Script
from pgflow.declare.text.javascript import json_text
from pgflow.declare.text.templates import Variables, environment
from pgflow.effects import Ref
from pgflow.texts import without_secrets

_MOST_IN_ENVIRONMENT: Final = 100_000
"""Longest value of one variable in bytes; Linux takes 128 KiB."""
_MOST_IN_ALL: Final = 1_000_000
_DEFAULT_SECONDS: Final = 120.0
_COMPLAINT_CHARS: Final = 2000


_LATER: Final = ("session", "long", "skipped")
"""Fields of an outcome that are only written if they hold something."""


class Done(BaseModel):
    """Outcome of a node's work: a text, perhaps a value; or an error. ``unknown`` if it was stopped
    in the middle, so that its effect is unknown. ``session`` is the agent's session that a later
    turn can continue. ``long`` is the file of an output that is too long for the journal: the text
    is its beginning, and a value is only there. ``skipped`` is the reason for which the node counts
    as skipped.
    """

    model_config = ConfigDict(extra="forbid")

    text: str = ""
    value: JsonValue = None
    has_value: bool = False
    error: str | None = None
    unknown: bool = False
    session: str | None = None
    long: Long | None = None
    skipped: str | None = None

    def model_post_init(self, _: object, /) -> None:
        """Count the fields that are written as given: then the text says nothing of the others."""
        given = self.__pydantic_fields_set__
        given.update(self.__dict__)
        for name in _LATER:
            if self.__dict__[name] is None:
                given.discard(name)

    @model_serializer(mode="wrap")
    def _without_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an empty session and file, since workers of older versions read this too. Mask
        passwords in an error.
        """
        dumped: dict[str, Any] = dump(self)
        if self.error is not None:
            dumped["error"] = without_secrets(self.error)
        for name in _LATER:
            if dumped[name] is None:
                del dumped[name]
        return dumped

    def shortened(self, folders: Folders) -> Done:
        """Return the same as the journal has it: what is too long for that is a file."""
        text, value, long = shortened(
            folders.spills, self.text, self.value, has_value=self.has_value
        )
        if long is None:
            return self
        return self.model_copy(update={"text": text, "value": value, "long": long})

    def whole(self) -> Done:
        """Return the same as references give it.

        Raises:
            OutputLost: The file of it is gone or was changed.
        """
        if self.long is None:
            return self
        text, value = restored(self.text, self.long, has_value=self.has_value)
        return self.model_copy(update={"text": text, "value": value})


class Unusable(Exception):
    """A value cannot be handed to a program; the message is the node's error."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program of a node, as it is run.

    Args:
        node: The node.
        key: Key of the step.
        values: Values of the variables of its script.
        variables: Variables of the run, which it gets in its environment.
        settings: Settings of the run.
        folders: Folders of the run.
        log: Log of the run; None for a rehearsal, which has none.
    """

    node: Node
    key: str
    variables: Variables
    settings: Settings
    folders: Folders
    log: LogFile | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    def with_values(self, values: Mapping[str, str]) -> Job:
        """Return the same job with values for its script."""
        return replace(self, values=values)

    @property
    def is_check(self) -> bool:
        """True for the check of a loop, whose exit status is all that counts."""
        return self.key.endswith(":until")

    @property
    def what(self) -> str:
        """Name of it in errors."""
        mode = "script" if self.node.body.mode == "script" else "bash"
        return f"{mode} node '{self.node.id}'"


def surroundings(settings: Settings, folders: Folders, variables: Variables) -> dict[str, str]:
    """Return the environment of the programs of a run: an allowed part of the worker's, its
    secrets, and the run's variables.

    Raises:
        Unusable: The worker does not have a secret.
    """
    folders.make(variables.artifacts_dir)
    given = {**named(ALLOWED), **settings.variables, **named(settings.env)}
    return {**given, **secrets_of_run(settings), **environment(variables)}


def short_values(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a program can be given. An agent has the rest in its
    prompt.

    Args:
        env: The environment.
    """
    left, short = _MOST_IN_ALL, {}
    for name, value in env.items():
        size = len(value.encode("utf-8", "replace"))
        if size <= _MOST_IN_ENVIRONMENT and size <= left and "\0" not in value:
            short[name], left = value, left - size
    return short


def secrets_of_run(settings: Settings) -> dict[str, str]:
    """Return the secrets of a run by name, as this worker has them now.

    Raises:
        Unusable: It does not have one.
    """
    try:
        return secrets_of(settings.secrets)
    except KeyError as error:
        raise Unusable(
            f"needs the secret {error.args[0]}, which this worker does not have"
        ) from None


async def run_shell(job: Job, script: str) -> Done:
    """Run a shell script to its end.

    Args:
        job: The work that it is run for.
        script: The script; values are variables in it.
    """
    try:
        env, files = _environment(job)
        read = (f"IFS= read -r -d '' {name} < {_quoted(str(path))} || :; " for name, path in files)
        text = "".join(read) + script
        is_long = len(_bytes("its script", text)) > _MOST_IN_ENVIRONMENT
    except Unusable as error:
        return Done(error=f"{job.what} {error}")
    arguments = [str(_written(job.folders, "script", text))] if is_long else ["-c", text]
    return await _program(job, ["bash", *arguments], env)


async def run_script(job: Job, body: Script, program: str, *, typed: bool) -> Done:
    """Run the program of a script node to its end.

    Args:
        job: The work that it is run for.
        body: The node's body.
        program: The program; values are literals in it.
        typed: True if it is TypeScript.
    """
    try:
        text = _bytes("its program", program)
        env, files = _environment(job)
    except Unusable as error:
        return Done(error=f"{job.what} {error}")
    env |= {f"{name}_FILE": str(path) for name, path in files}
    tool = _tool(body, env.get("PATH", os.defpath), typed=typed)
    if isinstance(tool, str):
        return Done(error=f"{job.what} {tool}")
    if len(text) > _MOST_IN_ENVIRONMENT:
        return await _program(job, [*tool.argv, *tool.reads_input], env, text)
    return await _program(job, [*tool.argv, tool.takes_text, program], env)


async def check_shell(job: Job, script: str) -> Done:
    """Run a loop's check: its text is ``pass`` if it passed."""
    done = await run_shell(job, script)
    return Done(text="fail" if done.error is not None else "pass")


class _Tool(NamedTuple):
    """A command that runs programs: its words, the one before the text of a program, and those by
    which it reads the program from standard input.
    """

    argv: list[str]
    takes_text: str
    reads_input: tuple[str, ...] = ("-",)


def _tool(body: Script, path: str, *, typed: bool) -> _Tool | str:
    """Return the command that runs a node's program; or the reason why there is none."""
    if body.runtime == "bun":
        if shutil.which("bun", path=path):
            return _Tool(["bun"], "-e", ("run", "-"))
        if shutil.which("node", path=path) and not typed:
            return _Tool(["node", "--input-type=module"], "-e")
        return "needs bun, which is not installed" + (
            " (node runs scripts that are not TypeScript)" if typed else ""
        )
    if shutil.which("uv", path=path):
        needs = (word for name in body.dependencies for word in ("--with", name))
        return _Tool(["uv", "run", *needs, "python"], "-c")
    if body.dependencies:
        return f"needs uv, which is not installed, for {', '.join(body.dependencies)}"
    if tool := shutil.which("python3", path=path) or shutil.which("python", path=path):
        return _Tool([tool], "-c")
    return "needs uv or python, and neither is installed"


def seconds_of(node: Node) -> float:
    """Longest time of a node's program."""
    return _DEFAULT_SECONDS if node.timeout_ms is None else node.timeout_ms / 1000


async def _program(job: Job, argv: list[str], env: Mapping[str, str], stdin: bytes = b"") -> Done:
    """Run a program, and judge its end as the original does."""
    seconds = seconds_of(job.node)
    order = Order(
        argv,
        job.settings.cwd,
        env,
        stdin=stdin,
        timeout_seconds=seconds,
        most_bytes=IN_JOURNAL,
        spill_dir=job.folders.spills,
        spills_bytes=MOST,
        secrets=tuple(secrets_of_run(job.settings).values()),
        complain=None if job.log is None else live.Complaints(job.node.id, job.key).put,
    )
    try:
        done = _judged(job, seconds, await _told(job, order))
        return done if job.is_check else _certified(job, done)
    except NotStarted as error:
        return Done(error=f"{job.what} failed: {error}")
    except TooLong:
        return Done(error=f"{job.what} printed more than {MOST >> 20} MiB", unknown=True)
    except Unusable as error:
        return Done(error=f"{job.what} {error}")


async def _told(job: Job, order: Order) -> Ended:
    """Run a program, and log its start and end."""
    if job.log is None:
        return await run(order)
    mode = job.node.body.mode
    if not job.is_check:
        job.log.tell("node_start", job.key, content=mode)
        live.tell(job.node.id, job.key, "start", mode)
    began = time.monotonic()
    with live.Beating():
        ended = await run(order)
    job.log.tell(
        "exec_output",
        job.key,
        content=mode,
        exit_code="timeout" if ended.timed_out else ended.status,
        stdout_tail=tail(ended.stdout.text),
        stderr_tail=tail(ended.stderr.text),
        duration_ms=round((time.monotonic() - began) * 1000),
    )
    return ended


def _judged(job: Job, seconds: float, ended: Ended) -> Done:
    """Return the outcome of a node whose program has ended."""
    complaint = ended.stderr.text.decode("utf-8", "replace").replace("\0", "\ufffd").strip()
    complaint = complaint[-_COMPLAINT_CHARS:]
    if ended.timed_out and job.node.skips_when_late:
        return Done(skipped="timeout")
    if ended.timed_out:
        return Done(error=f"{job.what} timed out after {seconds * 1000:g}ms", unknown=True)
    if ended.status < 0:
        message = f"{job.what} was killed by signal {-ended.status}: {complaint}"
        return Done(error=message, unknown=True)
    if ended.status:
        return Done(error=f"{job.what} failed [exit {ended.status}]: {complaint}")
    if ended.stdout.has_nul:
        return Done(error=f"{job.what} printed a NUL byte: outputs are text")
    if (path := ended.stdout.path) is None:
        return Done(text=ended.stdout.text.decode("utf-8", "replace").removesuffix("\n"))
    size = ended.stdout.size - ended.stdout.ends_line
    return Done(text=beginning(ended.stdout.text), long=Long(file=Ref(KIND, path), size=size))


def _certified(job: Job, done: Done) -> Done:
    """Return an output as the value that the node's schema asks for; an error if it does not
    fit.
    """
    schema = job.node.output_schema
    if schema is None or done.error is not None or done.skipped is not None:
        return done
    try:
        value = certified(done.whole().text, schema)
    except ValueError as error:
        return Done(error=f"{job.what} printed what does not fit output_format: {error}")
    return Done(text=json_text(value), value=value, has_value=True).shortened(job.folders)


def _environment(job: Job) -> tuple[dict[str, str], list[tuple[str, Path]]]:
    """Return the environment of a program, and the variables that are too long for it, as files.

    Raises:
        Unusable: A value cannot be passed to a program as text.
    """
    given = surroundings(job.settings, job.folders, job.variables)
    given |= {"PGFLOW_NODE": job.node.id, "PGFLOW_STEP": job.key}
    secrets = {*job.settings.secrets} - {*job.values}
    env: dict[str, str] = {}
    files = []
    left = _MOST_IN_ALL
    for name, value in {**given, **job.values}.items():
        size = len(_bytes(name, value))
        left -= size
        if size <= _MOST_IN_ENVIRONMENT and left > 0:
            env[name] = value
        elif name in secrets:
            raise Unusable(f"cannot be given the secret {name}: it is too long for a variable")
        else:
            files.append((name, _written(job.folders, "values", value)))
    return env, files


def _bytes(name: str, value: str) -> bytes:
    if "\0" in value:
        raise Unusable(f"cannot be given {name}: it holds a NUL, which no program can be given")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise Unusable(
            f"cannot be given {name}: it holds a lone surrogate: {error.reason}"
        ) from None


def _written(folders: Folders, kind: str, text: str) -> Path:
    """Return a file of that text, named by its hash."""
    data = text.encode()
    folder = folders.of_run / kind
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()
    if not path.exists():
        write_whole(path, data)
    return path


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
