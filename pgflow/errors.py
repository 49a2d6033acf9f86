"""Every error that pgflow raises, in one tree.

    Exception
    └── PgflowError
        ├── RunNotFound          PF001   no run has this key
        ├── PoolNotFound         PF026   no pool has this name
        ├── ScheduleNotFound     PF027   no schedule has this name
        ├── RelayNotFound        PF028   no relay has this name
        ├── KeyConflict          PF002   the key names a run with another workflow or input
        ├── InvalidArgument      PF003   a value that is not valid or cannot be stored
        │   └── NotStorable              a value that cannot be written as JSON and read back
        ├── LeaseLost            PF004   another worker holds the run
        ├── StepCommitted        PF005   a transactional step ended its transaction itself
        ├── WrongState           PF006   the run is not in a state that allows this
        ├── LockLost             PF025   a lock expired or was taken away
        ├── LockRefused                  a lock that could never be won
        ├── VersionConflict      PF024   an entity does not have the expected version
        ├── NotAllowed           PF021   the caller lacks the right to do this
        ├── GateClosed           PF022   the gate was answered before, or has expired
        ├── InvalidLink                  a link that answers a gate was altered
        ├── InvalidSignature             the signature of a webhook is not valid
        ├── PayloadChanged       PF023   the request of the gate has changed
        ├── HasActed             PF020   the dropped part has effects, and effects= is missing
        ├── RunFailed                    the workflow raised an error: the __cause__
        ├── UpdateFailed                 the handler of an update raised an error: the __cause__
        │   └── UpdateRejected           its validator did; nothing was done
        ├── UpdateRefused                the run ended before it answered the update
        ├── RunCancelled                 the run was cancelled, or its deadline passed
        ├── RunStuck                     the run cannot go on without a person
        ├── WorkerFailed                 the worker in this process stopped; others take its runs
        ├── StepFailed                   a step raised an error of an unknown class
        ├── NeedsGate                    the policy requires approval; nothing was done
        │   └── GateRejected             the approval was not given
        ├── Stale                        the precondition of an effect failed; nothing was done
        ├── Diverged                     the target of an effect has changed; nothing was done
        ├── EffectFailed                 an effect was settled as not done
        ├── TooManyFailures              map() lost more items than allowed
        ├── NonDeterminismError          the code does not repeat its journal
        ├── NotInRunError                only workflow or step code may call this
        ├── NotInWorkflowError           workflow code must not do this itself: a step may
        ├── WrongColourError             the other colour (async or sync) must be called
        ├── DefinitionError              a workflow or step that cannot work
        │   └── InvalidWorkflow          a file of a declared workflow that is not valid
        ├── BudgetExceeded               a pool did not admit the call, which did not run
        ├── CodecError                   a value that the app's codec cannot encode or decode
        │   └── Redacted                 a value that was replaced by its hash
        └── SetupError                   the database is not ready for pgflow
            ├── SchemaMissing            nothing is installed
            ├── SchemaForeign            a schema "pgflow" that is not ours
            ├── SchemaOutdated           `pgflow migrate` has not run for this version
            ├── SchemaNewer              the database belongs to a newer version
            ├── MissingGrant             the connection's role lacks a right
            ├── ServerUnsupported        the server is too old, or the database not in UTF-8
            └── EmbeddedServerError      the embedded server does not start

Those with a code are raised by the stored functions under that SQLSTATE. Messages say what
happened, to which run or step, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar


class PgflowError(Exception):
    """Base of all errors of pgflow."""

    sqlstate: ClassVar[str | None] = None


class RunNotFound(PgflowError):
    """No run has this key: never started, rolled back, or removed with its history."""

    sqlstate = "PF001"


class PoolNotFound(PgflowError):
    """No pool has this name: declare it in an app, or set it."""

    sqlstate = "PF026"


class ScheduleNotFound(PgflowError):
    """No schedule has this name: it was never declared, or was removed."""

    sqlstate = "PF027"


class RelayNotFound(PgflowError):
    """No relay has this name: it was never declared, or was removed."""

    sqlstate = "PF028"


class KeyConflict(PgflowError):
    """The key already names a run with another workflow or input. That run is unchanged."""

    sqlstate = "PF002"


class InvalidArgument(PgflowError, ValueError):
    """A name, option or value that is not valid."""

    sqlstate = "PF003"


class NotStorable(InvalidArgument):
    """A value that cannot be written as JSON within the limits, would read back as another value,
    or does not read back by its annotation. The limits are 1 MiB, 200 levels, and 4,299 digits of a
    number. Postgres itself refuses JSON of tens of thousands of levels with 54001, before pgflow
    sees it.

    Attributes:
        outline: Text of the error without that of a validator, which may quote the value, if it
            does not read back.
    """

    outline: str | None = None


class LeaseLost(PgflowError):
    """Another worker holds the run now. Nothing was written."""

    sqlstate = "PF004"


class StepCommitted(PgflowError):
    """A transactional step committed or rolled back by itself. The run is put on hold, since that
    cannot be undone.
    """

    sqlstate = "PF005"


class WrongState(PgflowError):
    """The run is not in a state that allows this."""

    sqlstate = "PF006"


class LockLost(PgflowError):
    """A lock expired, or an operator took it away. The system that it protects refuses its fence.

    Attributes:
        reason: ``broken``: an operator took it away. ``expired``: its ttl passed, or an earlier
            generation of the run released it. Empty for locks of plain code.
    """

    sqlstate = "PF025"

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class LockRefused(PgflowError):
    """A lock that could never be won. The code did not wait for it.

    Attributes:
        reason: ``reentered``: the code is already in a block of this lock. ``deadlock``: the holder
            waits for a lock of this run.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class VersionConflict(PgflowError):
    """An entity does not have the version that the update expected. Nothing was changed. Read it
    again, and decide on its present state.
    """

    sqlstate = "PF024"


class NotAllowed(PgflowError):
    """The caller lacks the right to do this: it needs an operator (``pgflow_operator``), or an
    approver of the gate.
    """

    sqlstate = "PF021"


class GateClosed(PgflowError):
    """The gate is closed: by the first answer that counts, or by its timeout.

    Attributes:
        verdict: Answer that counts: ``approve``, ``reject``, ``escalate``, ``take_over``, or
            ``expire`` after a timeout.
        by: Name of the approver.
        at: Time of the answer, on the database's clock, in ISO 8601.
        reason: Reason given; None for none.
    """

    sqlstate = "PF022"
    verdict: str = ""
    by: str = ""
    at: str = ""
    reason: str | None = None


class InvalidLink(PgflowError):
    """A link that answers a gate was altered, or signed with an unknown key."""


class InvalidSignature(PgflowError):
    """The signature of a webhook is not valid, or is too old."""


class PayloadChanged(PgflowError):
    """The request of the gate is not the one that was answered: it was edited since, or the hash
    belongs to another gate.
    """

    sqlstate = "PF023"


class HasActed(PgflowError):
    """A fork, rewind or restart would drop a part with outside effects, which the message names.
    Pass ``effects="reuse"`` or ``"repeat"``.
    """

    sqlstate = "PF020"


class RunFailed(PgflowError):
    """The workflow raised an error, which is rebuilt as the ``__cause__``."""


class UpdateFailed(PgflowError):
    """The handler of an update raised an error, which is rebuilt as the ``__cause__``."""


class UpdateRejected(UpdateFailed):
    """The run rejected an update, so nothing was done: its validator raised the ``__cause__``, the
    workflow has no such handler, or the arguments do not fit.
    """


class UpdateRefused(PgflowError):
    """The run ended, or dropped the update, before answering it."""


class RunCancelled(PgflowError):
    """The run was cancelled, by a request or its deadline."""


class RunStuck(PgflowError):
    """The run cannot go on without a person; the message says why."""


class WorkerFailed(PgflowError):
    """The worker in this process cannot go on. Its runs are handed back, and none run here."""


class StepFailed(PgflowError):
    """A step raised an error of a class that is unknown to Python, to ``raises=`` and to the app.

    Attributes:
        error_type: Module and qualified name of the error's class.
        message: Its text.
        attempts: Number of tries of the step.
    """

    def __init__(self, error_type: str, message: str, attempts: int = 1) -> None:
        super().__init__(f"{error_type}: {message}" if message else error_type)
        self.error_type = error_type
        self.message = message
        self.attempts = attempts


class NeedsGate(PgflowError):
    """The policy in force requires approval of this effect. Nothing was done.

    A workflow that calls the effect asks for approval at a gate. Only runs that met the policy
    before gates existed raise this.

    Attributes:
        policy_version: Version of the policy; None if that was not recorded.
        terms: Terms of the gate, from the rule of the policy: ``approvers``, ``quorum``,
            ``timeout`` in seconds, ``on_timeout`` and ``escalate``; None if it has none.
        notify: Name of the step that notifies the approvers; None for none.
    """

    policy_version: int | None = None
    terms: dict[str, Any] | None = None
    notify: str | None = None


class GateRejected(NeedsGate):
    """The policy requires approval, which was not given. Nothing was done.

    Attributes:
        verdict: Verdict of the gate, a code: ``reject``, ``escalate`` or ``expire``.
        reason: Reason given; empty for none.
        by: Names of the approvers who answered.
    """

    verdict: str = ""
    reason: str = ""
    by: tuple[str, ...] = ()


class Stale(PgflowError):
    """The precondition of an effect failed immediately before the act. Nothing was done."""


class Diverged(PgflowError):
    """The observation of an effect, immediately before the act, differs from the expected one.
    Nothing was done.

    Catch it to decide again on the present state, or let it end the run.

    Attributes:
        expected: The fingerprint passed as ``options(expect=...)``.
        observed: The fingerprint of the observation. Neither contains the observed values.
    """

    def __init__(self, message: str, expected: str = "", observed: str = "") -> None:
        super().__init__(message)
        self.expected = expected
        self.observed = observed


class EffectFailed(PgflowError):
    """An effect was settled as not done."""


class TooManyFailures(PgflowError):
    """``map()`` lost more items than allowed, or too few succeeded."""


class NonDeterminismError(PgflowError):
    """The workflow code does not repeat its journal. Nothing was written."""


class NotInRunError(PgflowError):
    """Only the code of a workflow or a step may call this: outside it would not be durable."""


class NotInWorkflowError(PgflowError):
    """Workflow code must not do this itself, since a replay would do it again; a step may."""


class WrongColourError(PgflowError):
    """The function of the other colour (async or sync) must be called here;
    the message names it.
    """


class DefinitionError(PgflowError):
    """A workflow, step or app that cannot work as it is declared."""


class InvalidWorkflow(DefinitionError):
    """A file that declares a workflow (a YAML DAG, an Agent SOP,
    an ICM workspace) and cannot be used.

    Attributes:
        problems: Everything that is wrong with it, in the order of the file:
            `pgflow.declare.Problem`.
    """

    def __init__(self, message: str, problems: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class BudgetExceeded(PgflowError):
    """A pool did not admit a call, so it did not run.

    Attributes:
        reason: ``used_up``, ``revoked`` or ``no_pool``.
        pool: The pool that lacks something; None if the run has none.
        unit: The unit that it lacks; None if it is revoked.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "used_up",
        pool: str | None = None,
        unit: str | None = None,
        amounts: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.pool = pool
        self.unit = unit
        self.amounts = amounts or {}

    @property
    def limit(self) -> Decimal | None:
        """Limit of the unit in this period; None if it is not about one."""
        return self._amount("limit")

    @property
    def left(self) -> Decimal | None:
        """Amount that could still be admitted."""
        return self._amount("left")

    @property
    def asked(self) -> Decimal | None:
        """Amount that the call asked for."""
        return self._amount("asked")

    def _amount(self, name: str) -> Decimal | None:
        text = self.amounts.get(name)
        return None if text is None else Decimal(text)


class CodecError(PgflowError):
    """A value cannot be encoded or decoded here: the app has no codec, the codec does not know the
    key, or it has failed.
    """


class Redacted(CodecError):
    """The value was replaced by its hash (``redact``), or is in a file that is gone. Its run can be
    read and verified, but not replayed beyond this value.
    """


class SetupError(PgflowError):
    """The database is not ready for pgflow."""


class SchemaMissing(SetupError):
    """Nothing is installed in this database: run ``pgflow migrate``."""


class SchemaForeign(SetupError):
    """The database has a schema named pgflow that belongs to something else."""


class SchemaOutdated(SetupError):
    """The schema is older than this version of pgflow: run ``pgflow migrate``."""


class SchemaNewer(SetupError):
    """The schema was written by a newer version of pgflow than this one."""


class MissingGrant(SetupError):
    """The role of a connection may not do this; the message names it, and the grant that helps."""


class ServerUnsupported(SetupError):
    """The server is older than Postgres 15, or the database has another encoding than UTF8."""


class EmbeddedServerError(SetupError):
    """The embedded server cannot be started; the message says why."""


BY_SQLSTATE: dict[str, type[PgflowError]] = {
    cls.sqlstate: cls
    for cls in (
        RunNotFound,
        PoolNotFound,
        ScheduleNotFound,
        RelayNotFound,
        KeyConflict,
        InvalidArgument,
        LeaseLost,
        StepCommitted,
        WrongState,
        NotAllowed,
        GateClosed,
        PayloadChanged,
        HasActed,
        LockLost,
        VersionConflict,
    )
    if cls.sqlstate
}
"""The error class of each SQLSTATE that the stored functions raise."""
