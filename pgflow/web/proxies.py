"""Declared proxies before the console: the client that they have seen, and its scheme.

Any client can send any header. A proxy's headers are trusted only if the request comes from a
declared address, and of its list only the last address that is not a declared proxy's: those before
it come from the client. Without a declaration the headers are ignored.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.types import Scope

from pgflow.errors import InvalidArgument

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_proxies(said: Sequence[str]) -> tuple[Network, ...]:
    """Return the networks of proxies.

    Raises:
        InvalidArgument: One of them is neither an address nor a network.
    """
    if isinstance(said, str):
        raise InvalidArgument("behind_proxy= is a list of addresses")
    try:
        return tuple(ipaddress.ip_network(one.strip()) for one in said)
    except ValueError as error:
        raise InvalidArgument(
            f"a proxy is named by its address or network, such as 10.0.0.5 or 10.0.0.0/24: {error}"
        ) from None


def through(scope: Scope, proxies: Sequence[Network]) -> Scope:
    """Return a request as the outermost of these proxies has received it."""
    client = scope.get("client")
    if client is None or not _is_in(str(client[0]), proxies):
        return scope
    headers = Headers(scope=scope)
    seen = str(client[0])
    for said in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
        address = _address_of(said)
        if address is None:
            break
        seen = address
        if not _is_in(seen, proxies):
            break
    # A proxy ends TLS before the console: one that speaks plain HTTP must declare that.
    last = headers.getlist("x-forwarded-proto")[-1:]
    is_plain = bool(last) and last[0].rpartition(",")[2].strip().lower() == "http"
    return {**scope, "client": (seen, 0), "scheme": "http" if is_plain else "https"}


def _is_in(address: str, proxies: Sequence[Network]) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any((mapped or found) in network for network in proxies)


def _address_of(said: str) -> str | None:
    """Return the address that a part of a header says, without its port; None if it says none."""
    text = said.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
