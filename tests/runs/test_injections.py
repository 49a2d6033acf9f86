"""Harmful values in the scripts of the corpus: a part of what `python -m tests.injections` plays."""

from __future__ import annotations

import random
import shutil
from collections import Counter

import pytest

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

from tests import injections

SAMPLE = 3


@pytest.mark.full
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_harmful_value_arrives_in_each_kind_of_place_and_runs_nothing():
    found = [*injections.sources(injections.CORPUS)]
    short = sorted(found, key=lambda source: (source.places, len(source.text)))
    chosen = {kind: source for source in reversed(short) for kind in kinds(source)}
    chance = random.Random(1)
    judged = [injections.judge(one) for one in {*chosen.values(), *chance.sample(short, SAMPLE)}]
    places = sum((one.places for one in judged), Counter[str]())
    assert [line for one in judged for line in one.wrong] == []
    assert {kind for kind in places if kind.startswith("in ")} >= {
        "in double quotes",
        "in single quotes",
        "in a quoted heredoc",
    }


def kinds(source: injections.Source) -> set[str]:
    """Kinds of the places of a script."""
    if source.language != "bash":
        return {source.language}
    return set(injections.kinds_of(source.text))


def test_a_value_that_runs_is_found():
    script = f"{injections.PRELUDE}eval printf $VALUE"
    said = injections.play(script, {"VALUE": f"x; touch {injections.MARK}"}, "0")
    assert injections.ran(said)
