"""Log of a command, on standard error.

The driver and its pool log a line for each try to connect and each query that is broken off. A
command has a line of its own for what comes of that, so theirs are for who debugs.
"""

from __future__ import annotations

import logging

from pgflow_cli.look.failures import Mistake

_DRIVER = logging.getLogger("psycopg")
_QUIET = logging.ERROR


def quiet_driver() -> None:
    """Keep warnings of the driver off the terminal, unless this process has set the level of its
    logger.
    """
    if _DRIVER.level in (logging.NOTSET, logging.WARNING):  # the latter is its own, once imported
        _DRIVER.setLevel(_QUIET)


def set_up_logging(level: str, form: str = "text", *, tells_failures: bool = False) -> None:
    """Log to standard error.

    Args:
        level: Least level that is shown.
        form: ``text`` or ``json``.
        tells_failures: True if the command prints failed runs itself. The log then shows them only
            below the level warning.

    Raises:
        Mistake: The level or format is unknown.
    """
    from pgflow.logs import JsonFormatter, TextFormatter, is_failed_run

    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise Mistake(f"--log-level is debug, info, warning or error, not {level!r}")
    if form not in ("text", "json"):
        raise Mistake(f"--log-format is text or json, not {form!r}")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    if tells_failures and level.upper() in ("WARNING", "ERROR"):
        handler.addFilter(lambda record: not is_failed_run(record))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level.upper() == "DEBUG" and _DRIVER.level == _QUIET:
        _DRIVER.setLevel(logging.NOTSET)
    # It logs each address that it asks, and a hook's may be a secret.
    logging.getLogger("httpx").setLevel(max(logging.WARNING, logging.getLogger().level))
