"""``pgflow mcp``: what it refuses before an assistant can talk to it."""

from __future__ import annotations

from clikit import pgflow as cli


def test_roles_are_given_only_to_who_may_answer_gates(dsn: str) -> None:
    refused = cli(dsn, "mcp", "--as", "ops")
    assert refused.code == 2
    assert "--as is for gates: say --answer too" in refused.err
