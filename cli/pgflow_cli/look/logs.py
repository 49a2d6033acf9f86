"""Log of a command that works on runs, on standard error."""

from __future__ import annotations

import logging

from pgflow_cli.look.failures import Mistake


def set_up_logging(level: str, form: str = "text") -> None:
    """Logs to standard error.

    Raises:
        Mistake: There is no such level or format.
    """
    from pgflow.logs import JsonFormatter, TextFormatter

    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise Mistake(f"--log-level is debug, info, warning or error, not {level!r}")
    if form not in ("text", "json"):
        raise Mistake(f"--log-format is text or json, not {form!r}")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # It says each address that it asks, and a hook's may be a secret.
    logging.getLogger("httpx").setLevel(max(logging.WARNING, logging.getLogger().level))
