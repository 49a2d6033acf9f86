"""Mutants: pgflow broken on purpose in one place at a time, to see whether a test notices.

The places are found in the source (`places.py`), and which tests are tried is read from a record of
what each test enters (`traces.py`). So no list has to follow a change of the product. A mutant that
survives is a finding: a test is missing, or the code is more than it has to be.

`python -m tests.mutants record` makes the record of a tier, `python -m tests.mutants --seed 1
--count 100 --out build/mutants` a campaign. It runs nightly, never before a landing.
"""

from .proofs import prove

__all__ = ["prove"]
