"""Tools of a server of the Model Context Protocol as steps: each has the class that you give it.

A server describes by hints what a tool does, and the protocol warns against trusting them. So you
declare the tool as you declare a step: by a function whose body is never run. Its name is that of
the tool, its parameters are the arguments, and its return annotation is the result. Declare a tool
that reads as a ``@read``, one that may be called again as a ``@step``, and one that must not be as
an ``@effect``: with a key if it takes one, with an unknown outcome if a call is lost, and with
approval where the policy requires it.

The protocol has no key by which a server recognizes a repeated call. The key is sent as ``_meta``,
which servers may ignore, and as an argument where the tool has one for it. Each call opens a
session of its own: a session belongs to the task that opened it, and bodies of steps share none.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import mcp
from mcp import MCPError
from mcp.types import INVALID_PARAMS, METHOD_NOT_FOUND, CallToolResult, TextContent
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

import pgflow
from pgflow import AsyncStep, Retries
from pgflow._flow.scope import StepScope, current
from pgflow._flow.step import resolve_hints
from pgflow.effects import AsyncEffect, Risk

P = ParamSpec("P")
R = TypeVar("R")

META_KEY = "pgflow.dev/idempotency-key"
"""Name of the key in the ``_meta`` of a call."""
REFUSALS = (INVALID_PARAMS, METHOD_NOT_FOUND)
"""Errors of the protocol by which a server says that it has not begun."""

Stub = Callable[P, Coroutine[Any, Any, R]]
ToolStep = AsyncStep[P, R, Stub[P, R]]
ToolEffect = AsyncEffect[P, R, Stub[P, R]]


class ToolFailed(Exception):
    """A tool has reported that it failed (``isError``), but not whether it did something."""


class ToolRefused(Exception):
    """A server has refused a call: it knows no such tool, or the arguments do not fit."""


class ServerUnreachable(Exception):
    """No session could be opened, so nothing was called."""


pgflow.extensions.register_errors(ToolFailed, ToolRefused, ServerUnreachable)


class RemoteTools:
    """Tools of a server.

    Args:
        name: Name of the server. The steps are named ``<name>.<tool>``.
        server: Anything that ``mcp.Client`` takes: a URL, ``StdioServerParameters``, a server of
            this process; or a function that returns one, if it is made anew for each session.
        timeout: Longest time for one call, in seconds.

    Example::

        bank = RemoteTools("bank", StdioServerParameters(command="bank-mcp"))


        @bank.effect(risk="irreversible", key_argument="key")
        async def transfer(to: str, cents: int) -> str: ...
    """

    def __init__(self, name: str, server: Any, *, timeout: float = 60) -> None:
        self.name = name
        self._server = server
        self._timeout = timeout

    def read(
        self, *, retries: Retries | int = 3, timeout: timedelta | float | None = None
    ) -> Callable[[Stub[P, R]], ToolStep[P, R]]:
        """Declare a tool that changes nothing: it may be called again freely.

        Args:
            retries: Tries in all, or how to space them.
            timeout: Longest time for one try.
        """
        made: Callable[[Stub[P, R]], ToolStep[P, R]]
        made = self._declared(pgflow.read, None, retries=retries, timeout=timeout)
        return made

    def step(
        self,
        *,
        key_argument: str | None = None,
        retries: Retries | int = 3,
        timeout: timedelta | float | None = None,
    ) -> Callable[[Stub[P, R]], ToolStep[P, R]]:
        """Declare a tool that may be called again with the same key or arguments.

        Args:
            key_argument: Argument of the tool that takes the idempotency key, which the function
                has not.
            retries: Tries in all, or how to space them.
            timeout: Longest time for one try.
        """
        made: Callable[[Stub[P, R]], ToolStep[P, R]]
        made = self._declared(pgflow.step, key_argument, retries=retries, timeout=timeout)
        return made

    def effect(
        self,
        *,
        risk: Risk,
        key_argument: str | None = None,
        raises: Sequence[type[Exception]] = (),
        **options: Any,
    ) -> Callable[[Stub[P, R]], ToolEffect[P, R]]:
        """Declare a tool that must not be called again blindly.

        A call that the server refuses has done nothing. After any other failure its outcome is
        unknown, and it is settled as every effect is.

        Args:
            risk: Means by which it can be taken back.
            key_argument: Argument of the tool that takes the idempotency key; leave it out of the
                function. Without one, the effect is not keyed.
            raises: Errors that mean that nothing was done. Add :class:`ToolFailed` if an error of
                this server means that.
            **options: Others of :func:`pgflow.effects.effect`.
        """
        keyed = options.pop("keyed", key_argument is not None)
        refusals = (ToolRefused, ServerUnreachable, *raises)
        made: Callable[[Stub[P, R]], ToolEffect[P, R]]
        made = self._declared(
            pgflow.effects.effect, key_argument, risk=risk, raises=refusals, keyed=keyed, **options
        )
        return made

    async def call(self, tool: str, arguments: dict[str, Any], *, key: str | None = None) -> Any:
        """Call a tool, as plain code: in ``.settle`` of an effect, for example.

        Args:
            tool: Name of the tool.
            arguments: Its arguments.
            key: Key of the call, sent as ``_meta``.

        Returns:
            Its structured result, else its text.

        Raises:
            ToolFailed: The tool says that it failed.
            ToolRefused: The server refuses the call.
            ServerUnreachable: No session could be opened.
        """
        result = await self._answer(tool, to_jsonable_python(arguments), key)
        if isinstance(result, MCPError):
            if result.code in REFUSALS:
                raise ToolRefused(f"{self.name}.{tool}: {result}")
            raise result
        if result.is_error:
            raise ToolFailed(f"{self.name}.{tool}: {_text(result)}")
        return _value(result)

    async def _answer(
        self, tool: str, arguments: dict[str, Any], key: str | None
    ) -> CallToolResult | MCPError:
        """Call a tool in a session of its own. An error is returned, since whatever leaves the
        session by raising comes out in a group.
        """
        meta: Any = {META_KEY: key} if key else None
        async with contextlib.AsyncExitStack() as stack:
            try:
                client = await stack.enter_async_context(self._client())
            except Exception as error:
                raise ServerUnreachable(f"{self.name}: {_first(error)}") from error
            try:
                return await client.call_tool(tool, arguments, meta=meta)
            except MCPError as error:
                return error
        raise AssertionError("the session ends with an answer")

    def _client(self) -> mcp.Client:
        server = self._server
        made: Any = server() if inspect.isfunction(server) or inspect.ismethod(server) else server
        return mcp.Client(made, read_timeout_seconds=self._timeout)

    def _declared(self, decorate: Any, key_argument: str | None, **options: Any) -> Any:
        if decorate is not pgflow.effects.effect:
            options["raises"] = (ToolFailed, ToolRefused)

        def declare(stub: Stub[P, R]) -> Any:
            made = decorate(name=f"{self.name}.{stub.__name__}", **options)
            return made(self._body(stub, key_argument))

        return declare

    def _body(self, stub: Stub[P, R], key_argument: str | None) -> Stub[P, R]:
        """Return the function that calls the tool declared by a stub."""
        signature = inspect.signature(stub)

        @functools.wraps(stub)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            key = pgflow.idempotency_key() if isinstance(current.get(), StepScope) else None
            given = {**bound.arguments, **({key_argument: key} if key_argument and key else {})}
            value = await self.call(stub.__name__, given, key=key)
            adapter: TypeAdapter[R] = TypeAdapter(resolve_hints(stub).get("return", Any))
            return adapter.validate_python(value)

        return call


def _value(result: CallToolResult) -> Any:
    """Return the result of a tool. Servers wrap a result that is not an object under ``result``."""
    found = result.structured_content
    if found is None:
        return _text(result)
    return found["result"] if isinstance(found, dict) and found.keys() == {"result"} else found


def _text(result: CallToolResult) -> str:
    texts = [part.text for part in result.content if isinstance(part, TextContent)]
    others = [part.type for part in result.content if not isinstance(part, TextContent)]
    return "\n".join(texts) if not others else json.dumps([*texts, *others])


def _first(error: BaseException) -> BaseException:
    """Return the error that a group is about."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
