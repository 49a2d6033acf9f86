"""Extensions: interceptors, payload codecs, transactions of other libraries, agents' operations."""

from pgflow._flow.interceptor import Interceptor, replaying
from pgflow._flow.operations import operation
from pgflow._model.envelopes import PayloadCodec, RotatingCodec
from pgflow._model.exceptions import register_errors
from pgflow._model.keyring import Keyring
from pgflow._model.operations import Operation
from pgflow._transactions.provider import (
    AsyncTransaction,
    AsyncTransactionProvider,
    Transaction,
    TransactionProvider,
)

__all__ = [
    "AsyncTransaction", "AsyncTransactionProvider", "Interceptor", "Keyring", "Operation",
    "PayloadCodec", "RotatingCodec", "Transaction", "TransactionProvider", "operation",
    "register_errors", "replaying",
]  # fmt: skip
