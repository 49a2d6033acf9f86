"""An app whose values are encrypted with keys that the environment names."""

from __future__ import annotations

import hashlib
import os

from pydantic import SecretStr

from pgflow import AsyncApp, step, workflow
from pgflow.extensions import Keyring


def ring(present: str, *names: str) -> Keyring:
    """A ring with keys that are made of their names."""
    keys = {name: hashlib.sha256(name.encode()).digest() for name in (present, *names)}
    return Keyring(keys, present, hash_key=b"the same for good")


@step
async def extend(token: SecretStr) -> SecretStr:
    return SecretStr(token.get_secret_value() + "+")


@workflow
async def extends(token: SecretStr, times: int) -> SecretStr:
    for _ in range(times):
        token = await extend(token)
    return token


app = AsyncApp(include=[extends], codec=ring(*os.environ.get("SHOP_KEYS", "k1").split()))
