"""Reasons are codes of a closed list; the words for people stand beside them, once."""

from __future__ import annotations

import re

import pytest

from pgflow._model.reasons import WORDS, in_words, reason_of


def test_what_the_database_records_is_of_the_list(db):
    query = "select string_agg(prosrc, '') from pg_proc where pronamespace = 'pgflow'::regnamespace"
    (text,) = db.execute(query).fetchone()
    recorded = dict(
        re.findall(r"json_build_object\('reason', '(\w+)'(?:, 'why',\s+'([^']+)')?", text)
    )
    assert recorded.keys() == {"absent_without_key", "absent_too_early", "key_expired", "silent"}
    found = {code: WORDS[code] for code, words in recorded.items() if words}
    assert found == {code: words for code, words in recorded.items() if words}


@pytest.mark.parametrize("code", WORDS)
def test_words_of_an_older_journal_are_read_as_their_code(code):
    assert reason_of({"why": WORDS[code]}) == reason_of({"reason": code}) == code
    assert in_words({"reason": code}) == in_words({"why": WORDS[code]}) == WORDS[code]


def test_what_somebody_says_comes_before_the_words_of_a_code():
    found = in_words({"reason": "no_compensation", "why": "the plan leaves it out"})
    assert found == "the plan leaves it out"
    found = in_words({"reason": "silent", "heartbeat_timeout": 2.5})
    assert found == "it was accepted, and sent no heartbeat for 2.5 s"
    assert in_words({"reason": "of a newer version"}) == "of a newer version"
    assert (reason_of({}), in_words({})) == ("", "")
