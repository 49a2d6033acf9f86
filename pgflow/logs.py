"""Log records of pgflow: formatters, and the rules for their content.

All records go to the standard library's logger ``pgflow`` and its child ``pgflow.run``, which is
the one behind :data:`pgflow.logger`. Records about a run carry the attributes of :data:`FIELDS`
that apply to them, for any handler; the formatters here are two ways to show them.

A record never contains inputs, results or payloads. Errors of servers and drivers may quote a
connection string or a row, so they go into messages through :func:`redacted`, and the formatters
hide text that looks like a password.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from datetime import UTC, datetime
from typing import Any, Final

import psycopg

from pgflow._model.frames import is_own
from pgflow.texts import printable, text_of, visible, without_secrets, without_secrets_in

FIELDS: Final = ("run", "run_id", "workflow", "generation", "step", "call", "attempt")
"""Attributes of records: the run's key, its number, its workflow and generation; the step, the
number of its call, which try.
"""

TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_SHOWN = ("run", "step", "call", "attempt")
_PLAIN = re.compile(r"[\w.:/@+~-]+")
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def redacted(error: BaseException) -> str:
    """Return an error's message in one line,
    without the details in which a server quotes rows and parameters.
    """
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return without_secrets(" ".join((primary or text_of(error)).split())) or type(error).__name__


class _OneLine(logging.Filter):
    """Makes what the engine's records quote - keys, names, errors - harmless, whatever formatter
    the application has.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                visible(str(arg)) if isinstance(arg, (str, BaseException)) else arg
                for arg in record.args
            )
        return _hide_secrets(record)


def _hide_secrets(record: logging.LogRecord) -> bool:
    """Take passwords out of a message and its traceback, whatever formatter comes then."""
    if isinstance(record.msg, (str, BaseException)):
        record.msg = without_secrets(str(record.msg))
    if isinstance(record.args, tuple):
        record.args = tuple(
            without_secrets(str(arg)) if isinstance(arg, (str, BaseException)) else arg
            for arg in record.args
        )
    elif isinstance(record.args, dict):
        record.args = without_secrets_in(record.args)
    if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
        record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
    return True


logging.getLogger("pgflow").addFilter(_OneLine())
logging.getLogger("pgflow.run").addFilter(_hide_secrets)


def is_failed_run(record: logging.LogRecord) -> bool:
    """Return True for the record of a failed run, whose error is the application's."""
    return record.name == "pgflow" and bool(record.exc_info) and hasattr(record, "run")


def _frames(record: logging.LogRecord) -> str:
    """Return the lines of the application's code in a traceback, without the text of the error,
    which may quote what the run works on.
    """
    assert record.exc_info is not None
    kind, _, frames = record.exc_info
    assert kind is not None
    lines = [frame for frame in traceback.extract_tb(frames) if not is_own(frame.filename)]
    text = "".join(["Traceback (most recent call last):\n", *traceback.format_list(lines)])
    return text + kind.__qualname__


class TextFormatter(logging.Formatter):
    """A line for people: time, level, logger, message, and which run and step it is about.

    Further lines of a message are indented, so that none of them looks like a record.

    Example::

        2026-03-01 09:30:12,511 INFO pgflow: pay failed [run=order-1 step=pay call=2 attempt=1]
    """

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of the standard library
        """The line without its traceback."""
        about = " ".join(
            f"{name}={_word(value)}"
            for name in _SHOWN
            if (value := getattr(record, name, None)) is not None
        )
        harmless = logging.makeLogRecord(vars(record))
        harmless.message = printable(record.message, keep="\n\t").replace("\n", "\n    ")
        return super().formatMessage(harmless) + (f" [{about}]" if about else "")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback if there is one."""
        if is_failed_run(record):
            record = logging.makeLogRecord(vars(record))
            record.exc_text = _frames(record)
        return without_secrets(super().format(record))


class JsonFormatter(logging.Formatter):
    """A JSON object a line: ``time``, ``level``, ``logger``, ``message``, :data:`FIELDS`, the
    record's own ``extra``, ``exception``.

    Example::

        handler.setFormatter(pgflow.logs.JsonFormatter())
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        line |= {
            name: _jsonable(value)
            for name, value in vars(record).items()
            if name not in _OF_EVERY_RECORD and name not in line
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = (
                _frames(record)
                if is_failed_run(record)
                else without_secrets(self.formatException(record.exc_info))
            )
        return json.dumps(line, ensure_ascii=False, default=_jsonable)


def _word(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else printable(json.dumps(text, ensure_ascii=False))


def _jsonable(value: Any) -> Any:
    if isinstance(value, (int, float, type(None), dict, list, tuple)):
        return value
    return without_secrets(str(value))
