"""Connections and tenants of blobs, for both colours."""

from __future__ import annotations

from typing import Any

from pgflow._flow.scope import current
from pgflow._transactions.join import adapt
from pgflow.app import AsyncApp
from pgflow.errors import NotStorable, WrongColourError


def executor_of(connection: Any, app: type) -> Any:
    """Return what runs statements in the open transaction of a connection.

    Args:
        connection: Of any library that ``app.using`` knows.
        app: The class of the app of the same colour.

    Raises:
        InvalidArgument: It is of no library we know, or has no open transaction.
        WrongColourError: It is of the other colour.
    """
    adapted = adapt(connection)
    if adapted.is_async is not (app is AsyncApp):
        right = "AsyncBlobs" if adapted.is_async else "Blobs"
        raise WrongColourError(f"use {right} with {type(connection).__qualname__}")
    return adapted.executor


def tenant_of(given: str) -> str:
    """Return the tenant whose blobs are meant: the given one, or that of the running step."""
    scope = current.get()
    return given or ("" if scope is None else scope.claim.tenant)


def refuse_codec() -> None:
    """Raise NotStorable in a step whose app encodes its values: a chunk would be in clear."""
    scope = current.get()
    envelopes = None if scope is None else scope.claim.envelopes
    if envelopes is not None and envelopes.is_writing:
        raise NotStorable(
            "the app's codec does not encode blobs, so this app stores none: encrypt the content, "
            "store it elsewhere and pass a reference"
        )
