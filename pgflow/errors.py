"""Every error that pgflow raises, in one tree.

    Exception
    └── PgflowError
        ├── RunNotFound          PF001   no run has this key
        ├── PoolNotFound         PF026   no pool has this name
        ├── ScheduleNotFound     PF027   no schedule has this name
        ├── RelayNotFound        PF028   no relay has this name
        ├── KeyConflict          PF002   the key names a run with another workflow or input
        ├── InvalidArgument      PF003   a value that no run can have or store
        │   └── NotStorable              a value that cannot be written as JSON and read back
        ├── LeaseLost            PF004   another worker holds the run
        ├── StepCommitted        PF005   a transactional step ended its transaction itself
        ├── WrongState           PF006   the run is not in a state that allows this
        ├── LockLost             PF025   a lock does not count any more
        ├── LockRefused          a lock that would never be had
        ├── VersionConflict      PF024   an entity has another version than expected
        ├── NotAllowed           PF021   others may do this, and not whoever asked
        ├── GateClosed           PF022   somebody has answered the gate before, or its time is over
        ├── InvalidLink                  a link that answers a gate was altered
        ├── InvalidSignature             the signature of a webhook does not hold
        ├── PayloadChanged       PF023   what the gate asks is not what was answered
        ├── HasActed PF020 what would be dropped of a run has acted, and nobody said what is to
        become of it ├── RunFailed the workflow raised; its error is the __cause__
        ├── UpdateFailed                 the handler of an update raised; its error is the __cause__
        │   └── UpdateRejected           its validator did: nothing was done
        ├── UpdateRefused                the run ended before it answered the update
        ├── RunCancelled                 the run was cancelled, or its deadline passed
        ├── RunStuck                     the run cannot go on without a person
        ├── WorkerFailed the worker in this process cannot go on; its runs go on elsewhere
        ├── StepFailed                   a step raised an error of a class that is not known here
        ├── NeedsGate                    the policy asks for somebody's leave; nothing was done
        │   └── GateRejected             nobody gave it
        ├── Stale the precondition of an effect did not hold; nothing was done
        ├── Diverged what an effect was to act on is not what its decision rested on; nothing was
        done ├── EffectFailed                 somebody has said that an effect was not done
        ├── TooManyFailures              map() lost more items than it may
        ├── NonDeterminismError          the code does not repeat what the journal says it did
        ├── NotInRunError                only workflow or step code may call this
        ├── NotInWorkflowError           workflow code must not do this itself: a step may
        ├── WrongColourError             the other colour (async or sync) must be called
        ├── DefinitionError              a workflow or step that cannot work
        │   └── InvalidWorkflow              a file of a declared workflow that cannot be used
        ├── BudgetExceeded               a pool did not admit the call, which was not made
        ├── CodecError                   a value that the app's codec cannot encode or decode
        │   └── Redacted                 a value that somebody had replaced by its hash
        └── SetupError                   the database is not ready for pgflow
            ├── SchemaMissing            nothing is installed
            ├── SchemaForeign            a schema "pgflow" that is not ours
            ├── SchemaOutdated           `pgflow migrate` has not run for this version
            ├── SchemaNewer              the database belongs to a newer version
            ├── MissingGrant             the role of a connection may not do this
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
    """No pool has this name: neither has an app declared it yet, nor somebody set it."""

    sqlstate = "PF026"


class ScheduleNotFound(PgflowError):
    """No schedule has this name: no app has declared it yet, or somebody has removed it."""

    sqlstate = "PF027"


class RelayNotFound(PgflowError):
    """No relay has this name: no app has declared it yet, or somebody has removed it."""

    sqlstate = "PF028"


class KeyConflict(PgflowError):
    """The key already names a run with another workflow or input; that run is unharmed."""

    sqlstate = "PF002"


class InvalidArgument(PgflowError, ValueError):
    """A name, option or value that no run can have."""

    sqlstate = "PF003"


class NotStorable(InvalidArgument):
    """A value that cannot be written as JSON within the limits, that would come back as another, or
    that cannot be read back as its annotation says. The limits are 1 MiB, 200 levels, and 4,299
    digits of a number. Postgres itself refuses JSON of tens of thousands of levels with 54001,
    before pgflow sees it.

    Attributes:
        outline: Of one that cannot be read back, its text without the words of a validator, which
            may quote the value.
    """

    outline: str | None = None


class LeaseLost(PgflowError):
    """Another worker holds the run now: nothing was written."""

    sqlstate = "PF004"


class StepCommitted(PgflowError):
    """A transactional step committed or rolled back by itself;
    the run is held, since that cannot be undone.
    """

    sqlstate = "PF005"


class WrongState(PgflowError):
    """The run is not in a state that allows this."""

    sqlstate = "PF006"


class LockLost(PgflowError):
    """A lock does not count any more: its time was over, or an operator has taken it away. What it
    protects refuses its fence.

    Attributes:
        reason: ``broken``: an operator has taken it away. ``expired``: its time was over, or an
            earlier generation of the run has given it back. Empty where plain code held it.
    """

    sqlstate = "PF025"

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class LockRefused(PgflowError):
    """A lock that would never be had: nothing was waited for.

    Attributes:
        reason: ``reentered``: the code is in a block of this lock already. ``deadlock``: who holds
            it waits for what this run holds.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class VersionConflict(PgflowError):
    """An entity has another version than the update expected; nothing was changed. Read it again,
    and decide on what it is now.
    """

    sqlstate = "PF024"


class NotAllowed(PgflowError):
    """Only others may do this: an operator (``pgflow_operator``), or whoever a gate asks."""

    sqlstate = "PF021"


class GateClosed(PgflowError):
    """The gate takes no more answers: the first one that closed it counts, or its time is over.

    Attributes:
        verdict: Answer that counts: ``approve``, ``reject``, ``escalate``, ``take_over``, or
            ``expire`` where nobody answered in time.
        by: Name of whoever gave it.
        at: Time of it, on the database's clock, in ISO 8601.
        reason: Reason that was given; None for none.
    """

    sqlstate = "PF022"
    verdict: str = ""
    by: str = ""
    at: str = ""
    reason: str | None = None


class InvalidLink(PgflowError):
    """A link that answers a gate was altered, or signed with a key that is not known."""


class InvalidSignature(PgflowError):
    """The signature of a webhook does not hold, or is too old."""


class PayloadChanged(PgflowError):
    """The request of the gate is not the one that was answered: somebody has edited it since, or
    the hash is of another gate.
    """

    sqlstate = "PF023"


class HasActed(PgflowError):
    """A fork, rewind or restart would drop a part that has acted outside; the message names it. Say
    ``effects="reuse"`` or ``"repeat"``.
    """

    sqlstate = "PF020"


class RunFailed(PgflowError):
    """The workflow raised. Its error, rebuilt, is the ``__cause__``."""


class UpdateFailed(PgflowError):
    """The handler of an update raised. Its error, rebuilt, is the ``__cause__``."""


class UpdateRejected(UpdateFailed):
    """The run did not take an update, so nothing was done: its validator raised, whose error is the
    ``__cause__``; or the workflow has no such handler, or its arguments do not fit.
    """


class UpdateRefused(PgflowError):
    """The run ended, or gave the update up, before it was answered."""


class RunCancelled(PgflowError):
    """The run was cancelled, by somebody or by its deadline."""


class RunStuck(PgflowError):
    """The run cannot go on without a person; the message says why."""


class WorkerFailed(PgflowError):
    """The worker in this process cannot go on:
    it hands its runs back, and nobody works on them here.
    """


class StepFailed(PgflowError):
    """A step raised an error whose class is known neither to Python,
    nor to ``raises=``, nor to the app.

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
    """The policy in force lets this effect through only with somebody's leave; nothing was done.

    A workflow that calls the effect asks for it at a gate. This is raised where it cannot: by runs
    that met the policy before gates were there.

    Attributes:
        policy_version: Version of the policy; None if that was not recorded.
        terms: Terms of the gate, as the rule of the policy says them: ``approvers``, ``quorum``,
            ``timeout`` in seconds, ``on_timeout`` and ``escalate``; None if it says none.
        notify: Name of the step that tells those who are asked; None for none.
    """

    policy_version: int | None = None
    terms: dict[str, Any] | None = None
    notify: str | None = None


class GateRejected(NeedsGate):
    """The policy asks for somebody's leave, and nobody gave it; nothing was done.

    Attributes:
        verdict: Verdict of the gate, a code: ``reject``, ``escalate`` or ``expire``.
        reason: Reason that was given; empty for none.
        by: Names of those who answered.
    """

    verdict: str = ""
    reason: str = ""
    by: tuple[str, ...] = ()


class Stale(PgflowError):
    """The precondition of an effect did not hold immediately before the act; nothing was done."""


class Diverged(PgflowError):
    """An effect found something else than it was called to expect, immediately before it acted;
    nothing was done.

    Catch it to decide again on what there is now, or let it end the run.

    Attributes:
        expected: The fingerprint passed as ``options(expect=...)``.
        observed: The fingerprint of what was found; neither holds what was observed.
    """

    def __init__(self, message: str, expected: str = "", observed: str = "") -> None:
        super().__init__(message)
        self.expected = expected
        self.observed = observed


class EffectFailed(PgflowError):
    """Somebody who knows has said that an effect was not done."""


class TooManyFailures(PgflowError):
    """``map()`` lost more items than it may, or too few succeeded."""


class NonDeterminismError(PgflowError):
    """The workflow code does not repeat what the journal says it did; nothing was written."""


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
    """A pool did not admit a call, so the call was not made.

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
    """Somebody had the value replaced by its hash (``redact``), or it is in a file that is gone:
    the run that recorded it can be read and verified, and not be replayed past it.
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
