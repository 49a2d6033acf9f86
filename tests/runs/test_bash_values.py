"""Values that would run where bash evaluates: they are refused, looked at or warned of."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

from pgflow.declare.dag import read_text
from pgflow.declare.durable import shell
from pgflow.declare.durable.shell import NotRewritable, rewrite
from tests import bashuses

REFUSED = {
    'printf -v "$a.output" hi': (11, "printf -v takes the name of a variable from $a.output"),
    '[[ -v "$a.output" ]]': (7, "-v takes the name"),
    'test -v "$x"': (9, "-v takes the name of a variable from $x"),
    '[ -v "$x" ]': (6, "-v takes"),
    "[[ -R $x ]]": (7, "-R takes"),
    'read -r "$x"': (9, "read takes"),
    'mapfile -C "$x" -c 1 q': (12, "mapfile -C runs"),
    'readarray "$x"': (11, "readarray takes"),
    "echo ${!x}": (6, "${!...} takes the name"),
    'set -- "$x"; echo ${!1}': (19, "${!...} takes"),
    'echo "${x@P}"': (7, "${...@P} expands"),
    'declare "$x=1"': (9, "declare takes"),
    'export "$x"': (8, "export takes"),
    'unset "$x"': (7, "unset takes"),
    "unset 'q[x]'": (7, "unset takes"),
    'declare -n r="$x"': (12, "r has declare -n"),
    'declare -n r; r="$x"': (15, "r has declare -n"),
    'declare -i n; read n <<< "$x"': (15, "n is an integer"),
    'declare -a q="$x"': (14, "declare of an array evaluates"),
    'q=(1); declare q="$x"': (18, "declare of an array evaluates"),
    "let y=x": (5, "let evaluates"),
    'getopts a "$x"': (11, "getopts takes"),
    'wait -n -p "$x"': (12, "wait -p takes"),
    'coproc "$x" { true; }': (8, "coproc takes"),
    "PS4=$x": (5, "PS4 says which programs run"),
    'BASH_ENV="$x" bash f': (10, "BASH_ENV says"),
    'declare -A m; [[ -v "m[$x]" ]]': (21, "write [[ -n ${...+x} ]] instead"),
    'q=("$x"); [[ q[0] -gt 1 ]]': (14, "write ${...} around it"),
    "$x --all": (1, "the name of a program from $x"),
    "exec $a.output": (6, "the name of a program from $a.output"),
    "echo ${!ARGUMENTS}": (6, "${!...} takes"),
    'y=$(echo "$x"); z=$y; echo ${!z}': (28, "${!...} takes"),
    'echo "$x" > file; y=$(cat file); echo ${!y}': (39, "${!...} takes"),
    'set -- "$x"; echo ${!#}': (19, "${!...} takes"),
    'printf "$x" hi': (8, "printf takes its options from $x"),
    'builtin printf -v "$x" 1': (19, "printf -v takes"),
    'command read "$x"': (14, "read takes"),
    'time read "$x"': (11, "read takes"),
    '"read" "$x"': (8, "read takes"),
    '\\test -v "$x"': (1, "a line begins with a backslash"),
    'builtin let "$x"': (13, "let evaluates"),
    'builtin declare "$x"': (17, "declare takes"),
    "nice $x": (6, "the name of a program from $x"),
    "timeout 5 $x": (11, "the name of a program from $x"),
    'read PS4 <<< "$x"': (1, "PS4 says which programs run"),
    'printf -v PS4 %s "$x"': (1, "PS4 says"),
    'for BASH_ENV in "$x"; do :; done': (1, "BASH_ENV says"),
    ': "${PS4:=$x}"': (4, "PS4 says"),
    'env "BASH_ENV=$x" bash f': (5, "BASH_ENV says"),
    "declare -i n; : ${n:=$x}": (17, "n is an integer"),
    'declare -i REPLY; read <<< "$x"': (19, "REPLY is an integer"),
    'declare -i OPTARG; getopts a: n -a "$x"': (20, "OPTARG is an integer"),
    'command [ -v "$x" ]': (14, "-v takes"),
    'echo hi >& "$x"': (9, ">& expands twice"),
    "exec {q[x]}> file": (6, "{q[x]} is a descriptor in an element"),
    "unset q[x]": (1, "unset takes"),
    "declare q[x]=1": (9, "assign it in a line of its own"),
    "[[ x+1 -gt 1 ]]": (4, "write $(( ... )) around it"),
    'o=-v; test $o "$x"': (12, "test may take for an operator"),
    "declare -n r=q[x]": (12, "r has declare -n"),
    "z='q[x]'; read \"$z\" <<< 1": (16, "read takes"),
    'declare -A m; m[$x]=1; for k in "${!m[@]}"; do unset "q[$k]"; done': (54, "unset takes"),
    'f() { test "$@"; }; f "$x" y': (12, "test may take for operators $@"),
    'f() { [ "$@" ]; }; f -v "$x"': (9, "test may take for operators"),
    'q=("$x"); test "${q[@]}"': (16, "test may take for operators"),
    'f() { printf "$@"; }; f -v "$x" hi': (14, "printf takes its options from $@"),
    "printf $x": (8, "printf takes its options from $x"),
    'f() { getopts "$@"; }; f a "$x"': (15, "getopts takes the name"),
    'u=test; $u -v "$x"': (15, "-v takes"),
    'u=printf; "${u}" -v "$x" hi': (21, "printf -v takes"),
    'u=read; command $u "$x" <<< 1': (20, "read takes"),
    'for u in unset; do $u "$x"; done': (23, "unset takes"),
    ': ${u:=declare}; $u "$x"': (21, "declare takes"),
    'f() { echo "$x"; }; y=$(f); echo ${!y}': (34, "${!...} takes the name"),
    "BASH_ALIASES[z]=$x": (17, "BASH_ALIASES says which programs run"),
    'echo "$x" > e; BASH_ENV=e bash -c true': (25, "BASH_ENV says"),
    'GIT_CONFIG_VALUE_0="!$x" git z': (20, "GIT_CONFIG_VALUE_0 says"),
    'TAR_OPTIONS="$x" tar -c f': (13, "TAR_OPTIONS says"),
    "flock f $x": (9, "the name of a program from $x"),
    "strace -o f $x": (13, "the name of a program from $x"),
    "command_not_found_handle() { $2; }; nosuch $x": (30, "the name of a program from $2"),
    'f() { printf -v "$1" \'%s\' "$x"; }; f y; (( y ))': (17, "printf -v takes"),
}


@pytest.mark.parametrize("use", REFUSED)
def test_a_value_that_would_be_a_name_or_a_program_is_refused_by_its_place(use):
    column, said = REFUSED[use]
    with pytest.raises(NotRewritable) as refused:
        rewrite(f"x=$a.output\n{use}\n")
    assert str(refused.value).startswith(f"line 2, column {column}: ")
    assert said in str(refused.value)


EVALUATED = (
    "(( x ))",
    "(( x++ ))",
    "echo $(( ${x:-0} + 1 ))",
    "[[ 1 -lt x ]]",
    '[[ "${x:-0}" -gt 1 ]]',
    "q=(1); echo ${q[x]}",
    "y=abc; echo ${y:x}",
    "declare -i n; n=$x",
    "[ $x = y ]",
    "cat <<X\n$(( x ))\nX",
    'echo "$x" | while read -r y; do (( y )); done',
    "time [[ $x -gt 1 ]]",
    "if ! (( x )); then :; fi",
    "echo $(( INPUTS_NAME ))",
    'f() { echo "$x"; }; (( $(f) ))',
    'declare -A m; m[$x]=1; for k in "${!m[@]}"; do (( k )); done',
    'declare -A m=([$x]=1); for k in "${!m[@]}"; do (( k )); done',
    "z='x+0'; (( z ))",
    "z='q[x]'; [[ $z -eq 1 ]]",
)


@pytest.mark.parametrize("use", EVALUATED)
def test_a_value_that_bash_evaluates_runs_nothing(use):
    made = rewrite(f"x=$a.output\n{use}\n")
    for value in ("a[$(touch${IFS}$MARK)]", "-v a[$(touch${IFS}$MARK)]"):
        values = {slot.name: value for slot in made.slots}
        assert not bashuses.play(made.text, values, value)[0]


def test_the_same_value_runs_where_nothing_is_put_around_it():
    with patch.object(shell._Guards, "edits", lambda _: iter(())):
        made = rewrite("x=$a.output\n(( x ))\n")
    values = {slot.name: bashuses.VALUES[0] for slot in made.slots}
    assert bashuses.play(made.text, values, "")[0]


def same(uses: Iterator[str] | tuple[str, ...], numbers: tuple[str, ...]) -> None:
    """Each use says of a number what it says without anything around it."""
    for use in uses:
        script = f"x=$a.output\n{use}\necho end $x $y\n"
        try:
            made = rewrite(script)
        except NotRewritable:
            continue
        with patch.object(shell._Guards, "edits", lambda _: iter(())):
            plain = rewrite(script)
        assert len(made.slots) == len(plain.slots)
        for number in numbers:
            values = {slot.name: number for slot in made.slots}
            said, expected = (bashuses.play(one.text, values, number) for one in (made, plain))
            assert said == expected, use


def test_a_number_is_evaluated_as_ever():
    same(EVALUATED, ("7", "-3"))


@pytest.mark.full
def test_a_number_is_evaluated_as_ever_in_every_use():
    names = ("y='x'", "y=x;")  # arithmetic of the name of a variable is not followed any more
    same(tuple(use for use in bashuses.USES if not use.startswith(names)), ("0", "7", ""))


@pytest.mark.full
def test_no_value_runs_in_whatever_use():
    tries = bashuses.draw(3_000, seed=5)
    ends = {one: bashuses.judge(one) for one in tries}
    assert [one for one, end in ends.items() if end == "ran"] == []
    assert {"refused", "harmless"} == set(ends.values())


def test_a_value_in_the_body_of_a_counting_loop_is_any_text():
    made = rewrite("for ((i = 0; i < 2; i++)); do echo $a.output; done")
    assert [slot.is_number for slot in made.slots] == [False]


def problems(script: str) -> list[tuple[str, int | None, int | None, str]]:
    """Verdicts on a bash node: severity, line and column, and words."""
    body = "".join(f"      {line}\n" for line in script.split("\n"))
    text = (
        "name: w\ndescription: d\nnodes:\n  - {id: a, prompt: p}\n"
        f"  - id: b\n    depends_on: [a]\n    bash: |\n{body}"
    )
    found = read_text(text).problems
    return [(one.severity, one.line, one.column, one.message) for one in found]


def test_a_refusal_is_told_by_line_and_column_of_the_file():
    found = problems('set -e\nif true; then\n  printf -v "$a.output" x\nfi')
    assert [one[:3] for one in found] == [("error", 10, 19)]
    assert found[0][3].startswith("Node 'b': printf -v takes the name of a variable from $a.output")


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ('eval "echo $a.output"', "eval"),
        ("bash -c 'echo $a.output'", "bash"),
        ('sh -ec "$a.output"', "sh"),
        ('ssh host "ls $a.output"', "ssh"),
        ('awk "{ print $a.output }" f', "awk"),
        ('sed -i "s/a/$a.output/" f', "sed"),
        ("echo $a.output | xargs -I{} sh -c 'echo {}'", "xargs"),
        ("xargs $a.output < f", "xargs"),
        ("find . -exec $a.output \\;", "find"),
        ('env -S "$a.output"', "env"),
        ('trap "$a.output" EXIT', "trap"),
        ('source "$a.output"', "source"),
        ('. "$a.output"', "."),
        ('python3 -c "print($a.output)"', "python3"),
        ("python3 - <<X\nprint('$a.output')\nX", "python3"),
        ('perl -e "$a.output"', "perl"),
        ("node -e '$a.output'", "node"),
        ("parallel echo ::: $a.output", "parallel"),
        ('su -c "$a.output" joe', "su"),
        ("git -c alias.x=$a.output x", "git"),
        ('docker exec c sh -c "$a.output"', "sh"),
        ('x="ls $a.output"; bash -c "$x"', "bash"),
        ("echo $a.output | bash", "bash"),
        ("eval 'echo ${!ARGUMENTS}'", "eval"),
        ("./$a.output/x.sh", "$a.output"),
        ('echo "$a.output" > x.sh; bash x.sh', "bash"),
        ('echo "$a.output" > x.sh; source x.sh', "source"),
        ('tee x.sh <<< "$a.output"; ./x.sh', "x.sh"),
        ('source /dev/stdin <<< "$a.output"', "source"),
        ("awk '{ system($0) }' <<< \"$a.output\"", "awk"),
        ("awk -v x=\"$a.output\" 'BEGIN { print | x }'", "awk"),
        ("sed 's/^/x/e' <<< \"$a.output\"", "sed"),
        ('ed -s f <<< "!$a.output"', "ed"),
        ('sqlite3 f ".shell $a.output"', "sqlite3"),
        ('echo "x: ; $a.output" | make -f -', "make"),
        ("timeout 5 bash -c '(( $1 ))' - \"$a.output\"", "bash"),
        ("export x=$a.output; bash <<< '(( x ))'", "bash"),
        ('u=eval; $u "$a.output"', "eval"),
        ('command eval "$a.output"', "eval"),
        ('u="bash -c"; $u "$a.output"', "$u"),
        ('u=(bash -c); "${u[@]}" "$a.output"', '"${u[@]}"'),
        ('$(echo eval) "$a.output"', "$(echo"),
        ('read u <<< eval; $u "$a.output"', "$u"),
        ('alias e=eval; e "$a.output"', "alias"),
        ('awk -f - <<< "BEGIN { system(\\"$a.output\\") }"', "awk"),
        ('awk -f <(echo "$a.output")', "awk"),
        ('echo "$a.output" >> ~/.bashrc; bash -ic true', "bash"),
        ('coproc bash; echo "$a.output" >&"${COPROC[1]}"', "bash"),
        ('coproc W { bash; }; echo "$a.output" >&"${W[1]}"', "bash"),
        ('exec 3> >(bash -s); echo "$a.output" >&3', "bash"),
        ('echo "$a.output" | xargs env', "xargs"),
        ('echo "$a.output" | xargs -I{} {} {}', "xargs"),
        ('hash -p /bin/sh z; z -c "$a.output"', "hash"),
        ('history -s "$a.output"; fc -s', "history"),
        ("x=$a.output; eval 'y=$x'; (( y ))", "eval"),
        ('rbash -c "$a.output"', "rbash"),
        ('scp -o ProxyCommand="$a.output" a h:', "scp"),
        ('vi -c "!$a.output"', "vi"),
        ('tclsh <<< "exec $a.output"', "tclsh"),
        ('npx -c "$a.output"', "npx"),
        ('command_not_found_handle() { eval "$2"; }; nosuch "$a.output"', "eval"),
        ('${SHELL} <<< "$a.output"', "bash"),
        ("export x=$a.output; python3 -c 'import os; os.system(os.environ[\"x\"])'", "python3"),
        ("perl -e 'system($ARGV[0])' \\\"$a.output\\\"", "perl"),
        ("x=$a.output awk 'BEGIN { system(ENVIRON[\\\"x\\\"]) }'", "awk"),
        ('echo "$a.output" > x.sh; for s in *.sh; do bash "$s"; done', "bash"),
        ('echo "$a.output" > x.sh; find . -name x.sh -exec sh {} \\;', "sh"),
        ('echo "$a.output" > x.sh; timeout 5 bash x.sh', "bash"),
        ('f=x.sh; echo "$a.output" > "$f"; bash x.sh', "bash"),
        ('t=$(mktemp); echo "$a.output" > "$t"; $t', "$t"),
        ('echo "$a.output" > b/ls; PATH=b:$PATH; ls', "ls"),
        ('echo "all: ; $a.output" > Makefile; make', "make"),
        ('echo "all: ; $a.output" > m; make -fm', "make"),
        ('dd of=x.sh <<< "$a.output"; bash x.sh', "bash"),
        ('sort -o x.sh <<< "$a.output"; bash x.sh', "bash"),
        ('install -m 755 /dev/stdin x.sh <<< "$a.output"; ./x.sh', "x.sh"),
    ],
)
def test_a_program_that_gets_a_value_as_code_is_warned_of_by_name(script, program):
    found = problems(script)
    assert {one[0] for one in found} == {"warning"}
    assert any(message.startswith(f"Node 'b': {program} ") for *_, message in found), found


@pytest.mark.parametrize("script", [
    'bash -c \'echo "$1"\' - "$a.output"', "awk -v x=\"$a.output\" '{ print x }' f",
    'python3 script.py "$a.output" <<< "$a.output"', "jq -r .x <<< $a.output",
    'git commit -m "$a.output"', "trap 'rm -f file' EXIT; echo $a.output > file",
    'echo "$a.output" | bun script.ts', 'awk \'{ print > "f" }\' <<< "$a.output"',
    "sed 's/e/e/g' <<< \"$a.output\"", 'echo "$a.output" > f; python3 script.py < f',
    'f() { echo "$1"; }; f "$a.output" > f; cat f', 'u=git; $u log "$a.output"',
    'u="npm run"; $u x "$a.output"', '"$HOME/bin/tool" "$a.output"',
    'exec > >(tee -a log) 2>&1; bash tool.sh "$a.output"', 'flock lock ./tool "$a.output"',
    't=$(mktemp); echo "$a.output" > "$t"; ./tool "$t"', 'awk -f x.awk <<< "$a.output"',
    'for s in *.sh; do bash "$s" "$a.output"; done', "eval 'n=3'; echo $a.output",
    'echo "$a.output" | xargs -I{} echo {}', 'PATH=$HOME/bin:$PATH; tool "$a.output"',
    'echo "$a.output" > Dockerfile; docker build -f Dockerfile .', "make; sort <<< $a.output",
])  # fmt: skip
def test_a_value_that_is_handed_over_as_a_value_is_not_warned_of(script):
    assert problems(script) == []
