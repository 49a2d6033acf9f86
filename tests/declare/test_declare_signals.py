"""Signals by which a loop hears that it is over."""

from __future__ import annotations

import pytest

from pgflow.declare.play.signals import has_signal, without_signal_tags


@pytest.mark.parametrize("output", [
    "COMPLETE", "All done. COMPLETE!!! \n\n", "x\u2028 COMPLETE \ry", "- COMPLETE", "(COMPLETE",
    "<done>\n complete\t</DONE>", "<body class='x'>COMPLETE</b>", "<a <b>COMPLETE</b>",
    "5 > 4 <done>COMPLETE</done>", "INCOMPLETE\nCOMPLETE\nso much",
])  # fmt: skip
def test_a_signal_is_heard_in_tags_at_the_end_and_on_its_own_line(output):
    assert has_signal(output, "COMPLETE")


@pytest.mark.parametrize("output", [
    "", "complete", "COMPLETED", "not COMPLETE yet", "`COMPLETE`", "**COMPLETE**", "COMPLETE)",
    "<done>COMPLETE</note>", "<done>not COMPLETE</done> yet", "<1>COMPLETE</1> x", "INCOMPLETE",
    "ÜBERCOMPLETE.", "NOT_COMPLETE\n", "COMPLETE\x85",
])  # fmt: skip
def test_a_signal_is_not_heard_in_prose_or_in_longer_words(output):
    assert not has_signal(output, "COMPLETE")


def test_a_signal_may_consist_of_any_characters():
    assert has_signal("x <p>A+B?</p>", "a+b?")
    assert has_signal("so A+B? ...", "A+B?")
    assert has_signal("word[END]", "[END]")
    assert has_signal("DONE!", "DONE!")
    assert not has_signal("AAB", "A+B")
    assert has_signal("x\nready to\nship\ny", "ready to\nship")


@pytest.mark.parametrize(("output", "rest"), [
    ("<promise>whatever</PROMISE> rest", "rest"),
    ("a <promise>1</promise> b <promise>2\n3</promise> c <promise>4", "a  b  c <promise>4"),
    ("<x>done</x> and <y> DONE </y>!", "and !"), ("<x>DONE</y>", "<x>DONE</y>"),
    ("<x>other</x>", "<x>other</x>"), ("5 < 6 <x>DONE</x>", "5 < 6"), ("\ufeff DONE \n", "DONE"),
])  # fmt: skip
def test_tags_that_carry_the_signal_are_taken_out(output, rest):
    assert without_signal_tags(output, "DONE") == rest


def test_without_a_signal_only_promises_are_taken_out():
    assert without_signal_tags(" <promise>DONE</promise><x>DONE</x> ") == "<x>DONE</x>"


@pytest.mark.parametrize("output", [
    "<a" * 200_000, "<a>" * 100_000, "<promise>" * 100_000, "DONE " * 100_000, "\n" * 300_000,
    ">DONE</a" * 50_000, "<a>DONE" + " " * 300_000, "\r" * 100_000 + "DONE" + " " * 200_000 + "x",
], ids=range(8))  # fmt: skip
def test_hostile_outputs_are_searched_to_their_end(output):
    has_signal(output, "DONE")
    without_signal_tags(output, "DONE")
