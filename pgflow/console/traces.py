"""Links to what is kept of a run elsewhere: its logs, by the id of its trace."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from pgflow.errors import InvalidArgument


def checked_logs(template: str) -> str:
    """Return an address of logs with its placeholders.

    Raises:
        InvalidArgument: It is not an address of a site, or has other placeholders.
    """
    if not template:
        return ""
    rest = template.replace("{trace_id}", "").replace("{key}", "")
    parts = urlsplit(rest)
    if parts.scheme not in ("https", "http") or not parts.netloc or re.search(r"[{}\s]", rest):
        raise InvalidArgument(
            "logs= is an address such as https://logs.example.org/?q={trace_id}, with {trace_id} "
            f"or {{key}} in it, not {template!r}"
        )
    if parts.netloc != urlsplit(template).netloc:
        raise InvalidArgument("logs= has its {trace_id} or {key} behind the name of the site")
    return template


def logs_of(template: str, key: str, trace_id: str) -> str:
    """Return the address of the logs of a run; empty if there is none."""
    found = template.replace("{trace_id}", quote(trace_id, safe=""))
    return found.replace("{key}", quote(key, safe=""))
