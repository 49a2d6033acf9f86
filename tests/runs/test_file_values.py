"""Values in shells and programs: they arrive byte for byte in whatever place, and nothing of them is
run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runkit import MARK

from pgflow.declare.dag import discover, read_file
from pgflow.declare.durable.programs import fill, prepare
from pgflow.declare.durable.shell import NotRewritable, rewrite
from pgflow.declare.graph import Bash, Group, Loop, Script, every_node
from pgflow.declare.text.templates import program_references

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

CORPUS = Path(__file__).parents[1] / "corpus" / "dag"
EVIL = (
    f"'\"$(touch {MARK})`touch {MARK}`;touch {MARK}\n\\ ${{HOME}} $HOME * ~ é\U0001f600\n)}}]] end"
)


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    MARK.unlink(missing_ok=True)
    yield
    assert not MARK.exists()


def said(script: str, value: str = EVIL) -> str:
    """The output of a script whose references all have this value."""
    shell = rewrite(script)
    env = {"PATH": os.environ["PATH"], **{slot.name: value for slot in shell.slots}}
    done = subprocess.run(
        ["bash", "-c", shell.text], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "script",
    [
        "printf %s $a.output",
        'printf %s "$a.output"',
        "printf %s '$a.output'",
        "printf %s $'$a.output'",
        'printf %s $"$a.output"',
        'x=$a.output; printf %s "$x"',
        "x='$a.output'; printf %s \"$x\"",
        "printf %s \"$(printf %s $a.output; echo .)\" | sed '$s/\\.$//'",
        "printf %s \"$(printf %s '$a.output'; echo .)\" | sed '$s/\\.$//'",
        'printf %s `printf %s "$a.output" >/dev/null`$a.output',
        "printf %s ${none:-$a.output}",
        'printf %s "${none:-$a.output}"',
        "f() { printf %s $1; }; f $a.output >/dev/null; printf %s $a.output",
        'for x in $a.output; do printf %s "$x"; done',
        "case $a.output in $a.output) printf %s $a.output;; *) echo no;; esac",
        "[[ $a.output == $a.output && $a.output =~ $a.output ]] && printf %s $a.output",
        'test "$a.output" = $a.output && printf %s $a.output',
        'array=($a.output two); printf %s "${array[0]}"',
        "# $a.output '\nprintf %s $a.output # $a.output \"",
        "printf %s $my-node.output",
        "printf %s $LOOP_PREV.a.output",
        "printf %s $ARTIFACTS_DIR",
        "cat <<X | head -c -1\n$a.output\nX",
        "cat <<'X' | head -c -1\n$a.output\nX",
        'cat <<"X" | head -c -1\n$a.output\nX',
        "cat <<-'X' | head -c -1\n\t$a.output\n\tX",
        "cat <<< $a.output | head -c -1",
    ],
)
def test_a_value_arrives_byte_for_byte(script):
    assert said(script) == EVIL


def test_the_rest_of_a_quoted_heredoc_stays_as_it_is():
    body = "$HOME `id` \\$x \\\\ \\\n$(id) 'single' \"double\"\n"
    assert said(f"cat <<'X'\n{body}$a.output\nX\n") == f"{body}{EVIL}\n"


def test_what_is_escaped_or_belongs_to_another_dollar_is_no_reference():
    assert rewrite("echo \\$a.output $$a.output").slots == ()


@pytest.mark.parametrize(
    "script",
    [
        "echo $(( $a.output + 1 ))",
        "(( x = $a.output )); echo $x",
        "[[ $a.output -gt 3 ]]",
        "let x=$a.output",
        "declare -i x=$a.output",
        'x=(1 2); echo "${x[$a.output]}"',
        "for ((i = 0; i < $a.output; i++)); do :; done",
        'let "x = $a.output"',
        "((y = 10#$a.output + 1))",
        "((y=10#$a.output))",
        "echo $[10#$a.output]",
        "echo $((0x$a.output))",
    ],
)
def test_where_bash_evaluates_only_a_number_will_do(script):
    assert [slot.is_number for slot in rewrite(script).slots] == [True]


@pytest.mark.parametrize(
    "script", ["test $a.output -gt 3", "[[ $a.output == 3 ]]", "declare -A x; echo ${x[$a.output]}"]
)
def test_elsewhere_any_text_will_do(script):
    assert [slot.is_number for slot in rewrite(script).slots] == [False]


@pytest.mark.parametrize("word", ["1", '"$a.output"', "$a.output"])
@pytest.mark.parametrize("loop", ["for", "select"])
def test_a_loop_over_words_may_read_a_text(loop, word):
    shell = rewrite(f"{loop} x in a; do break; done <<< {word}\necho $a.output")
    assert shell.text.startswith(f"{loop} x in a; do break; done <<< ")
    assert {slot.reference for slot in shell.slots} == {"$a.output"}


def test_a_numbered_file_may_be_given_a_text():
    found = {slot.reference for slot in rewrite('read -r x -u 3 3<<< "$a.output"').slots}
    assert found == {"$a.output"}


def test_a_script_that_the_lexer_does_not_understand_is_refused_by_its_line():
    said = "line 2, column 7: the lexer does not understand \"<<'X'; }"
    with pytest.raises(NotRewritable, match=said):
        rewrite("true\n{ cat <<'X'; } | cat\n$a.output\nX\n")


def test_a_heredoc_whose_delimiter_is_no_word_is_refused_by_its_line():
    with pytest.raises(NotRewritable, match="line 2: the heredoc 'E O F'"):
        rewrite("true\ncat <<'E O F'\n$a.output\nE O F\n")


@pytest.mark.parametrize(
    "expression",
    ["$a.output", "'$a.output'", '"$a.output"', "`$a.output`", "`${$a.output}`", "'' + $a.output"],
)
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_value_is_a_literal_of_javascript(expression):
    program = prepare(f"process.stdout.write({expression})", "javascript")
    text = fill(program, lambda _: EVIL)
    done = subprocess.run(["node", "-e", text], capture_output=True, text=True, check=True)
    assert done.stdout == EVIL


@pytest.mark.parametrize("expression", [
    "$a.output", "'$a.output'", '"$a.output"', "r'$a.output'", "f'$a.output'",
    "f'''{$a.output[:0]}$a.output'''", '"""$a.output"""', "'%s' % $a.output",
])  # fmt: skip
def test_a_value_is_a_literal_of_python(expression):
    program = prepare(f"import sys\nsys.stdout.write({expression})", "python")
    text = fill(program, lambda _: "plain" if "[:0]" in expression else EVIL)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == ("plain" if "[:0]" in expression else EVIL)


@pytest.mark.parametrize(("language", "comment"), [("javascript", "//"), ("python", "#")])
def test_a_reference_in_a_comment_of_a_program_stays(language, comment):
    text = f"{comment} $a.output\nprint(1)"
    assert fill(prepare(text, language), lambda _: EVIL) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("language", ["javascript", "python"])
def test_an_expression_is_the_value_that_a_text_says_in_json(language):
    program = prepare("$a.output", language)  # type: ignore[arg-type]
    for text, said_as in {"5": 5, "true": True, '{"k": [1, "x"]}': {"k": [1, "x"]}}.items():
        written = fill(program, lambda _, text=text: text)
        value = (
            eval(written)
            if language == "python"
            else json.loads(
                subprocess.run(
                    ["node", "-p", f"JSON.stringify({written})"],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
        )
        assert value == said_as


def scripts() -> Iterator[tuple[str, str, str]]:
    """Every shell and program of the corpus that has references: file, kind and text."""
    for verdict in (*discover(CORPUS / "head"), *discover(CORPUS / "sdlc-pack")):
        for node in every_node(verdict.graph.nodes) if verdict.graph is not None else ():
            match node.body:
                case Bash(script=text):
                    yield verdict.file, "bash", text
                case Script(script=text, runtime=runtime, inline=True):
                    yield verdict.file, {"bun": "javascript", "uv": "python"}[runtime], text
                case Loop() | Group() if node.body.until.bash is not None:
                    yield verdict.file, "bash", node.body.until.bash


@pytest.mark.full
def test_the_corpus_has_no_script_that_cannot_be_rewritten():
    found = {
        (kind, text) for _, kind, text in scripts() if any(True for _ in program_references(text))
    }
    assert len(found) > 8
    for kind, text in found:
        if kind != "bash":
            prepare(text, kind)  # type: ignore[arg-type]
            continue
        shell = rewrite(text)
        done = subprocess.run(
            ["bash", "-n", "-c", shell.text], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (shell.text, done.stderr)
        left = [
            line for line in shell.text.splitlines() if any(True for _ in program_references(line))
        ]
        assert all("#" in line or "\\$" in line for line in left), left


def test_a_file_of_the_corpus_is_read_here():
    assert read_file(CORPUS / "head/archon/workflows/test-workflows/e2e-joins.yaml").graph
