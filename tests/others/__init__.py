"""Behaviour that users of other engines rely on, as tests of this one: `python -m tests.others`.

A folder is a suite. `suite.toml` names the peer, the version that was read, and the reasons for
exceptions; `cases.tsv` has a line for each behaviour: its number, the behaviour, our test or a reason,
and the place where the peer has it. `SUITE_programs.py` has the tests that no other room has already. A suite
with an `adapter.py` runs the peer's own tests, from its package, on pgflow. Suites with `packages` have an
environment of their own.
"""
