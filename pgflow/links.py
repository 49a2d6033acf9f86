"""Signed links to answer a gate, for example from a mail and without an account.

A link holds the gate, the hash of the request that was shown, the verdict, the approver and the
expiry, signed with HMAC-SHA256. An altered link is not valid. GET shows the request and changes
nothing, since mail programs and scanners open links by themselves; a button there (POST) answers.
The answer uses the link up, since the gate is closed then. The database decides everything else by
its own clock: the rights of the approver, changes of the request, and the expiry.

Keys have names, so that you can rotate them: the current key signs, and all keys verify. Removing a
key voids its links. It needs ``pip install "pgflow-engine[links]"``.

Example::

    keys = LinkKeys({"2026-11": os.environ["LINK_KEY"]})

    @step
    async def tell_ops(gate: GateRequest) -> None:
        until = datetime.now(UTC) + timedelta(hours=8)
        yes = keys.sign(gate.id, gate.payload_hash, "approve", "ops@example.org", until)
        await send_mail("ops@example.org", f"https://example.org/gates/{yes}")

    web.mount("/gates", pgflow.links.asgi(app, keys=keys))
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from itsdangerous import Signer
from itsdangerous.encoding import base64_decode, base64_encode

from pgflow._asgi import Asgi, Receive, Scope, Send, live
from pgflow._model.envelopes import open_value
from pgflow._model.gates import Approve, Reject
from pgflow.app import App, AsyncApp
from pgflow.errors import (
    GateClosed,
    InvalidArgument,
    InvalidLink,
    NotAllowed,
    PayloadChanged,
    PgflowError,
    RunNotFound,
    WrongState,
)
from pgflow.inspect import GateRow, Question, ask, ask_async, find_gate, has_passed

__all__ = ["Link", "LinkKeys", "asgi"]


T = TypeVar("T")

LinkVerdict = Literal["approve", "reject"]

MIN_KEY_BYTES = 16
MAX_TOKEN_CHARS = 4096
MAX_BODY_BYTES = 16_384
MAX_REASON_CHARS = 4096


@dataclass(frozen=True)
class Link:
    """A verified link.

    Attributes:
        gate: Key of the gate.
        payload_hash: Hash of the request that was shown.
        verdict: ``approve`` or ``reject``.
        by: Name of the approver.
        until: Expiry, by the database's clock.
        key_id: Name of the key that signed it.
    """

    gate: str
    payload_hash: str
    verdict: LinkVerdict
    by: str
    until: datetime
    key_id: str


class LinkKeys:
    """Keys that sign links, by their names.

    Args:
        keys: The keys, each of at least 16 bytes.
        current: Name of the key that signs; the last one if not given.

    Raises:
        InvalidArgument: There is none, one is too short, or the current one is not there.
    """

    def __init__(self, keys: Mapping[str, str | bytes], *, current: str | None = None) -> None:
        secrets = {
            name: key.encode() if isinstance(key, str) else key for name, key in keys.items()
        }
        if not secrets:
            raise InvalidArgument("links need a key to sign them")
        short = [name for name, key in secrets.items() if len(key) < MIN_KEY_BYTES]
        if short:
            raise InvalidArgument(
                f"key {short[0]!r} of links is shorter than {MIN_KEY_BYTES} bytes"
            )
        self._current = list(secrets)[-1] if current is None else current
        if self._current not in secrets:
            raise InvalidArgument(f"current={self._current!r} is not among the keys of links")
        self._signers = {
            name: Signer(key, b"pgflow.links", key_derivation="hmac", digest_method=hashlib.sha256)
            for name, key in secrets.items()
        }

    def sign(
        self, gate: str, payload_hash: str, verdict: LinkVerdict, by: str, until: datetime
    ) -> str:
        """Return the last part of a link's address.

        Args:
            gate: Key of the gate.
            payload_hash: Hash of the request that is shown.
            verdict: ``approve`` or ``reject``.
            by: Name of the approver.
            until: Expiry, by the database's clock.

        Raises:
            InvalidArgument: The verdict is not one of these, an argument is empty, or the time has
                no zone.
        """
        if verdict not in ("approve", "reject"):
            raise InvalidArgument(
                f"verdict of a link must be 'approve' or 'reject', not {verdict!r}"
            )
        if not all(isinstance(text, str) and text for text in (gate, payload_hash, by)):
            raise InvalidArgument("a link needs a gate, the hash of its request, and by=")
        if until.tzinfo is None:
            raise InvalidArgument("until of a link must have a time zone")
        payload = [
            self._current,
            gate,
            payload_hash,
            verdict,
            by,
            until.astimezone(UTC).isoformat(),
        ]
        body = base64_encode(json.dumps(payload, ensure_ascii=False, separators=(",", ":")))
        return self._signers[self._current].sign(body).decode()

    def read(self, token: str) -> Link:
        """Return the content of a link, even if it has expired.

        Args:
            token: The last part of its address.

        Raises:
            InvalidLink: It was altered, or its key is not known.
        """
        try:
            text = token.encode("ascii")
        except ValueError as error:
            raise InvalidLink("this link is not valid") from error
        body = text.rpartition(b".")[0]
        # The whole text is compared, not only what it decodes to: a link has one text.
        signers = [
            name
            for name, signer in self._signers.items()
            if hmac.compare_digest(signer.sign(body), text)
        ]
        if not signers:
            raise InvalidLink(
                "this link was altered, or it was signed with a key that is not known"
            )
        # Nothing of it is looked at before here.
        key_id, gate, payload_hash, verdict, by, until = json.loads(base64_decode(body))
        if key_id not in signers:  # two keys of one secret are two keys
            raise InvalidLink("this link was signed with a key that is not known")
        return Link(gate, payload_hash, verdict, by, datetime.fromisoformat(until), key_id)


# ---------------------------------------------------------------- the web


async def _ask(app: App | AsyncApp, question: Question[T]) -> T:
    if isinstance(app, App):
        return await asyncio.to_thread(ask, app, question)
    return await ask_async(app, question)


async def _find(app: App | AsyncApp, gate: str) -> GateRow | None:
    """Return an open gate, with its request in clear."""
    found = await _ask(app, find_gate(gate))
    if found is None:
        return None
    shown = open_value(app.definitions.envelopes, found.request, f"the request of gate {gate!r}")
    return replace(found, request=shown)


async def _answer(app: App | AsyncApp, link: Link, reason: str) -> None:
    """Answer a gate. The database refuses invalid answers."""
    answer = Approve(comment=reason) if link.verdict == "approve" else Reject(reason)
    options: dict[str, Any] = {
        "by": link.by,
        "payload_hash": link.payload_hash,
        "valid_until": link.until,
    }
    if isinstance(app, App):
        await asyncio.to_thread(app.answer, link.gate, answer, **options)
    else:
        await app.answer(link.gate, answer, **options)


def asgi(app: App | AsyncApp, *, keys: LinkKeys) -> Asgi:
    """Return an ASGI application that shows gates and takes answers by links. Mount it anywhere:
    the last part of the path is the link.

    GET shows the request and a button. POST answers.

    Args:
        app: The app, which is open while requests come.
        keys: The keys that sign links.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"links are served over HTTP, not {scope['type']}")
        status, title, body = await _respond(app, keys, scope, receive)
        page = _page(title, body).encode()
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-length", str(len(page)).encode()),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
            (b"x-robots-tag", b"noindex"),
            (b"x-content-type-options", b"nosniff"),
            (
                b"content-security-policy",
                b"default-src 'none'; form-action 'self'; frame-ancestors 'none'",
            ),
            *([(b"allow", b"GET, HEAD, POST")] if status == 405 else []),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else page}
        )

    return serve


async def _respond(
    app: App | AsyncApp, keys: LinkKeys, scope: Scope, receive: Receive
) -> tuple[int, str, str]:
    """Return status, title and content of the answer to a request."""
    token = scope["path"].rstrip("/").rpartition("/")[2]
    try:
        if len(token) > MAX_TOKEN_CHARS:
            raise InvalidLink("this link is not valid")
        link = keys.read(token)
        if scope["method"] in ("GET", "HEAD"):
            return await _show(app, link)
        if scope["method"] == "POST":
            await _answer(app, link, await _reason(receive))
            return (
                200,
                "Thank you",
                f"<p>{html.escape(link.gate)}: {link.verdict}, by {html.escape(link.by)}.</p>",
            )
    except PgflowError as error:
        return _refusal(error)
    return 405, "Not here", "<p>Open the link, and use the button.</p>"


async def _show(app: App | AsyncApp, link: Link) -> tuple[int, str, str]:
    if await _ask(app, has_passed(link.until)):
        raise NotAllowed(f"this link was good until {link.until}")
    gate = await _find(app, link.gate)
    if gate is None:
        return (
            410,
            "Nothing to answer",
            "<p>It was answered, has expired, or is not wanted any more.</p>",
        )
    if gate.payload_hash != link.payload_hash:
        return (
            409,
            "Something else is asked now",
            "<p>The request was edited after this link was sent.</p>",
        )
    request = json.dumps(gate.request, ensure_ascii=False, indent=2)
    reason = (
        '<p><label>Reason: <input name="reason" maxlength="1000"></label></p>'
        if link.verdict == "reject"
        else ""
    )
    return (
        200,
        gate.name,
        (
            f"<p>{html.escape(gate.workflow)} {html.escape(gate.key)} asks "
            f"{html.escape(link.by)}:</p><pre>{html.escape(request)}</pre>"
            f'<form method="post">{reason}'
            f"<p><button>{link.verdict.capitalize()}</button></p></form>"
        ),
    )


async def _reason(receive: Receive) -> str:
    """Return the reason that a form was sent with."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise InvalidArgument("the connection broke before the whole answer was here")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise InvalidArgument("this is too long for a reason")
        if not message.get("more_body"):
            break
    form: dict[str, list[str]] = urllib.parse.parse_qs(str(body, errors="replace"))
    return form.get("reason", [""])[0][:MAX_REASON_CHARS]


_STATUSES: tuple[tuple[type[PgflowError], int, str], ...] = (
    (GateClosed, 410, "Too late"),
    (PayloadChanged, 409, "Something else is asked now"),
    (WrongState, 409, "You have answered"),
    (InvalidLink, 403, "No valid link"),
    (NotAllowed, 403, "Not allowed"),
    (RunNotFound, 410, "Nothing to answer"),
    (InvalidArgument, 400, "This cannot be"),
)


def _refusal(error: PgflowError) -> tuple[int, str, str]:
    for cls, status, title in _STATUSES:
        if isinstance(error, cls):
            return status, title, f"<p>{html.escape(str(error))}</p>"
    raise error


def _page(title: str, body: str) -> str:
    shown = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{shown}</title>'
        '<meta name="viewport" content="width=device-width"></head>'
        f"<body><h1>{shown}</h1>{body}</body></html>"
    )
