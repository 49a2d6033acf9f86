"""Uses of a value in bash, each under values that are programs: `python -m tests.bashuses [--tries N]
[--seed S]`.

A try draws a use (`[[ $x -gt 1 ]]`), a way by which the value came to `$x`, what is around the use,
and a value that runs a command where bash evaluates it. The script is rewritten as a run rewrites
it. Either it is refused, or real bash plays it and the command has not run. A script that is
warned of may run it, and is not among the uses. Numbers must come out of each script as they come
out of it without guards.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pgflow.declare.durable.shell import NotRewritable, rewrite

MARK = "ran"
"""The file that a value makes if it is run."""
TOUCH = "touch${IFS}$MARK"
VALUES = (
    f"a[$({TOUCH})]", f"$({TOUCH})", f"`{TOUCH}`", f"x[$({TOUCH})]=1", f"0]+a[$({TOUCH})",
    f"-v a[$({TOUCH})]", f"($({TOUCH}))", f"([a]=$({TOUCH}))", f"0,a[$({TOUCH})]",
    f"q -o -v a[$({TOUCH})] -o q", "touch ran", "PGFLOW_VALUE_1", "x", f"1;{TOUCH}", f"a[`{TOUCH}`]",
)  # fmt: skip
WAYS = (
    "x=$a.output", 'x="$a.output"', "x='$a.output'", "export x=$a.output", "read -r x <<< $a.output",
    'x=$(printf %s "$a.output")', "x=`printf %s $a.output`", "x=$ARGUMENTS", "x=${INPUTS_NAME}",
    "x=$LOOP_PREV_OUTPUT", "for x in $a.output; do :; done", 'printf -v x %s "$a.output"',
    'mapfile -t xs <<< "$a.output"; x=${xs[0]}', 'f9() { x=$1; }; f9 "$a.output"',
    'echo "$a.output" > file; x=$(cat file)', 'echo "$a.output" | tee file; read -r x < file',
    ": ${x:=$a.output}", "IFS= read -r x < <(echo $a.output)", "x=1; x+=$a.output; x=${x#1}",
    "y=$a.output; x=$y", "cat > file <<X\n$a.output\nX\nx=$(<file)",
)  # fmt: skip
AROUND = (
    "{}", "f0() {{\n{}\n}}; f0", "(\n{}\n)", "if true; then\n{}\nfi", 'echo "$(\n{}\n)"',
    "for i0 in 1; do\n{}\ndone", "{{\n{}\n}} | cat", "case q in q)\n{}\n;; esac",
    "while read -r w0; do\n{}\ndone <<< 1", "true && {{\n{}\n}}", "set -euo pipefail\n{}",
    "if ! true; then :; else\n{}\nfi",
)  # fmt: skip
SECONDS = 10.0

_USES = r"""
[ $x ]
test $x
[ -n $x ]
[ $x = y ]
[ $a.output = y ]
test $a.output
[ $x -gt 1 ]
f() { test "$@"; }; f "$x" "$x"
f() { [ "$@" ]; }; f -v "$x"
f() { test $*; }; f "$x"
q=("$x"); test "${q[@]}"
f() { printf "$@"; }; f -v "$x" hi
f() { getopts "$@"; }; f a "$x"
u=test; $u -v "$x"
u=read; "$u" "$x" <<< 1
u=unset; command $u "$x"
u=declare; ${u} "$x=1"
u=let; $u "y=x"
u=[; $u -v "$x" ]
for u in printf; do $u -v "$x" hi; done
typeset -i y="x+1"
declare -i y=0; y+=x
exec 3< <(echo "$x"); read -u 3 y; (( y ))
cp <(echo "$x") f; y=$(cat f); (( y ))
echo "$x" > "$HOME/f"; y=$(cat "$HOME/f"); (( y ))
coproc { echo "$x"; }; read y <&"${COPROC[0]}"; (( y ))
q[0]=$x; (( q[0]++ ))
f() (( $1 )); f "$x"
f() { for ((i=0;i<$1;i++)); do break; done; }; f "$x"
(( ++x, --x, x-- ))
echo "$[x]"
y=${x@Q}; (( y ))
cat <<X
${q[x]}
X
cat <<X
${y:x} $[x] ${!x}
X
printf -vq "$x"; (( q ))
printf "$x" hi
read y <<< x; (( y ))
[[ $x =~ (.*) ]]; (( BASH_REMATCH[0] ))
[[ $x =~ (.*) ]] && (( ${BASH_REMATCH[1]} ))
: "$x"; (( $_ ))
f() { (( ${!#} )); }; f "$x"
builtin read "$x" <<< 1
command unset "$x"
\test -v "$x"
"read" "$x" <<< 1
builtin declare -i n="$x"
command declare "n=$x"; (( n ))
declare -i n; : ${n:=$x}
declare -i REPLY; read <<< "$x"
exec {q[x]}> f
printf -v "$a.output" hi
printf -v"$a.output" hi
[[ -v "$a.output" ]]
[[ -v $x ]]
test -v "$x"
[ -v "$x" ]
[[ -R $x ]]
read "$x" <<< hi
read -r "$x" <<< hi
read -a "$x" <<< hi
echo ${!x}
echo "${!x}"
set -- "$x"; echo ${!1}
f() { echo ${!1}; }; f "$x"
y=abc; echo ${y:$x}
y=abc; echo ${y:0:$x}
y=abc; echo ${y:x}
y=abc; echo "${y:$a.output}"
set -- a b; echo "${@:$x}"
echo $(( $x ))
echo $(( x ))
echo $(( ${x:-0} + 1 ))
echo $(( ${x} ))
echo $(( ${x%%,*} + ${x##q} ))
echo "$(( x + 1 )) $(( ${x:-0} ))"
echo $[ x ]
(( x ))
time [[ $x -gt 1 ]]
coproc (( x ))
time -p (( x ))
if ! (( x )); then :; fi
! [[ $x -gt 1 ]]
echo $(( 10#$x ))
echo $(( 16#${x} ))
(( x++ ))
(( ++x ))
(( x += 1 ))
(( y = 1, x++ ))
for (( i = 0; i < 1; i++, x++ )); do :; done
for (( i = x; i < 2; i++ )); do :; done
(( y = x ))
(( arr[x] = 1 ))
let "$x"
let x+1
let y=x
[[ $x -eq 1 ]]
[[ x -eq 1 ]]
[[ "$x" -gt 1 ]]
[[ "${x:-0}" -gt 1 ]]
[[ $(echo "$x") -gt 1 ]]
[[ $(echo "$a.output") -lt 1 && 1 -lt x ]]
[[ 1 -eq ${x} || $x -ne 3 ]]
test "$x" -gt 1
[ "$x" -gt 1 ]
[ $x -gt 1 ]
[ $x = y ]
test $x
[ $x ]
if [ ! "$x" "$x" ]; then :; fi
[ "$a.output" "$x" ]
printf %d "$x"
printf "$x"
declare -i n=$x
declare -i n; n=$x
declare -i n; n="$x"
declare -i n; n+=$x
declare -i n; n=${x:-0}
declare -i n=$(echo "$x")
declare -i n; read n <<< "$x"
declare -i n; for n in "$x"; do :; done
declare -i n; printf -v n %s "$x"
declare -ai n; n=("$x")
declare -ai n=($x)
local -i n=$x
f() { local -i n=$1; }; f "$x"
f() { local -i n="$1"; }; f "$a.output"
declare "$x=1"
declare "$x"
declare "n=$x"
declare -i "n=$x"
typeset "$x=1"
f() { local "$x=1"; }; f
readonly "$x"
export "$x"
export $x
export "$x=1"
unset "$x"
unset -v $x
unset 'q[x]'
unset 'q[$x]'
unset "q[$x]"
mapfile "$x" <<< hi
mapfile -c 1 -C "$x" q <<< hi
readarray -C "$x" -c 1 q <<< hi
getopts a "$x"
true & wait -n -p "$x"
coproc "$x" { true; }
echo "${x@P}"
echo ${x@P}
q=(1 2); echo "${q[$x]}"
q=(1 2); echo "${q[x]}"
q=(1 2); echo "${q[${x:-0}]}"
q[$x]=1
q[x]=1
q=([$x]=1)
q=([x]=1)
q=($x)
q=("$x")
declare -A m=($x)
declare -A m; echo "${m[$x]}"
declare -A m; m[$x]=1
declare -A m; (( m[$x]++ ))
declare -A m; echo $(( m[$x] + 1 ))
declare -A m; m[$x]=$(( ${m[$x]:-0} + 1 ))
declare -A m; [[ -v m[$x] ]]
declare -A m; [[ -v "m[$x]" ]]
declare -A m=([a]=1); unset "m[$x]"
declare -A m=([a]=1); unset 'm[$x]'
declare -A m; [[ m[$x] -eq 0 ]]
declare -A m; read "m[$x]" <<< 1
declare -n r="$x"; r=5
declare -n r=$x; echo $r
declare -n r; r="$x"; echo $r
declare -n r; for r in "$x"; do echo $r; done
declare -n r=x; echo $(( r ))
cat <<X
$(( x ))
X
cat <<X
$(( $x )) ${x} $(( ${x:-0} ))
X
cat <<X
$(( $a.output ))
X
cat <<X
`$x`
X
PS4=$x; set -x; true
export BASH_ENV="$x"; bash -c true
BASH_ENV=$x bash -c true
case $x in $x) :;; esac
echo $x *
declare -a q="$x"
declare -A q="$x"
declare -a "q=$x"
q=(1); declare q="$x"
f() { local -a q="$1"; }; f "$x"
f() { local -a q; local q="$1"; }; f "$x"
readonly -a q="$x"
RANDOM=$x
OPTIND=$x; getopts a o
SECONDS=$x
: ${y:=$x}; echo $(( y ))
select y in "$x"; do break; done <<< 1; echo $((y))
y=$x; z=$y; (( z ))
y=x; (( y ))
read y <<< "$x"; (( y ))
echo "$x" | while read y; do (( y )); done
while read -r y; do [[ $y -gt 1 ]]; done <<< "$a.output"
mapfile -t q <<< "$x"; (( q[0] ))
mapfile -t q <<< "$x"; echo $(( ${q[0]} ))
mapfile -t q <<< "$x"; for y in "${q[@]}"; do (( y )); done
f() { (( $1 )); }; f "$x"
f() { read y; (( y )); }; echo "$x" | f
f() { echo "$1"; }; y=$(f "$x"); (( y ))
echo "$x" > out; y=$(cat out); (( y ))
echo "$x" | tee out >/dev/null; read y < out; (( y ))
printf '%s' "$x" > out; [[ $(cat out) -gt 1 ]]
$x
"$x"
$a.output
exec "$x"
command $x
env "$x" true
y=$(echo "$x"); echo ${!y}
y=${x^^}; z=${x,,}; (( z ))
y=${x/q/}; (( y ))
echo $(( $ARGUMENTS ))
[[ $ARGUMENTS -gt 1 ]]
(( INPUTS_COUNT ))
[[ $INPUTS_COUNT -eq 1 ]]
y=$LOOP_PREV_OUTPUT; (( y > 1 ))
echo ${!USER_MESSAGE}
y=(1 2 3); echo ${y[@]:$x:1}
y=(1 2 3); echo ${y[@]:0:x}
(( x ? 1 : 2 ))
echo $(( 1 + (x) * 2 ))
while (( x-- > 0 )); do break; done
y=$(( x )); (( y ))
IFS=, read -ra q <<< "$x"; (( q[0] ))
y=0; for z in $x; do (( y += z )); done
y=1; (( y += x ))
y=1; (( y += $x ))
shopt -s extglob; [[ a == +($x) ]]
y='x'; echo $(( y ))
y=$x; y+=1; (( y ))
{ (( x )); } 2>/dev/null
echo $(echo $(( x )))
echo `echo $(( x ))`
time (( x ))
! (( x ))
(( x )) && true || true
echo {1..$x}
y[$(( x ))]=1
declare y=$x; (( y ))
export y=$x; (( y ))
readonly y=$x; (( y ))
local y=$x
y="$x"; [[ $y -gt 0 && $y -lt 9 ]]
printf -v y %s "$x"; (( y ))
y=$(( ${#x} )); (( y ))
y=${#x}; (( y ))
[[ -n $x && x -gt 1 ]]
if (( $(wc -l <<< "$x") > 1 )); then :; fi
if (( $(echo "$x" | head -1) > 1 )); then :; fi
(( $(cat <<< "$x") ))
exit $x
return $x
shift $x
break $x
printf '%(%s)T' "$x"
echo "${x:0:3}" ${x: -1}
echo ${x:${x}:1}
echo "${x/#a/b}"
[ "$x" == "$a.output" ]
[ -z "$x" -o "$x" = y ]
[ -n $x -a $x = $x ]
hash "$x"; type "$x"; command -v "$x"
ulimit -n "$x"; umask "$x"; kill -0 "$x"
read -t "$x" y; read -n "$x" y; read -u "$x" y
mapfile -n "$x" y; mapfile -O "$x" y; mapfile -s "$x" y
declare -p "$x"; declare -F "$x"; declare -f "$x"
IFS=$x; y=1; echo $y
y=$x:$x; (( ${y%%:*} ))
y=("$x"); (( y ))
y=("$x"); (( y[0] ))
y=("$x"); (( ${y[0]} ))
y=("$x"); (( y[0]++ ))
y=("$x"); [[ ${y[0]} -gt 1 ]]
y=("$x"); [[ y[0] -gt 1 ]]
y=("$x"); echo ${!y}
set -- $x; (( $1 ))
set -- $x; (( ${1:-0} ))
set -- $x; [[ $1 -gt 2 ]]
for y; do (( y )); done
g() { for y; do (( y )); done; }; g "$x"
g() { for y in "$@"; do (( y )); done; }; g "$x"
g() { while (( $# )); do (( $1 )); shift; done; }; g "$x"
(( x == 1 )) ; (( x != 1 )); (( x <= 1 ))
(( y = x == 1 ))
(( y == x ))
x=$a.output$a.output; (( x ))
x="1 $a.output"; (( x ))
x='$a.output'; (( x ))
y=$'$a.output'; (( y ))
q=(1 2); unset q[x]
q=(1 2); declare q[x]=1
q=(1 2); : ${q[x]:=1} ${#q[x]} ${q[x]^^}
[[ x+1 -eq 1 ]]
[[ "x" -eq 1 ]]
[[ 'x' -eq 1 ]]
y=ab; echo ${y#$((x))}
declare -ai n; n+=("x")
stdbuf -o0 $x
[[ 1 -eq 1 && ( $y = 1 || x -ge 1 ) ]]
o=-v; test $o "$x"
declare -n r=q[x]; r=1
z='q[x]'; read "$z" <<< 1
z="x+0"; (( z ))
z="q[x]"; [[ $z -eq 1 ]]
f() { echo "$x"; }; (( $(f) ))
f() { echo "$1"; }; y=$(f "$x"); echo ${!y}
f() { local a=$1 b=$((a)); }; f "$x"
f() { local k; for k in "$@"; do (( k )); done; }; f "$x"
declare -A m; m[$x]=1; for k in "${!m[@]}"; do (( k )); done
declare -A m; m[$x]=1; for k in "${!m[@]}"; do unset "q[$k]"; done
declare -A m; (( m[$x]++ )); for k in "${!m[@]}"; do echo ${q[k]}; done
declare -A m=([$x]=1); for k in "${!m[@]}"; do (( k )); done
while IFS=, read -r k v; do declare -A n; n[$k]=$v; echo ${n[$k]}; done <<< "$x,a"
"""


def _split(text: str) -> list[str]:
    """The uses: a line each, but for heredocs."""
    return re.findall(r"^.*<<X$(?:\n.*)*?\nX$|^.+$", text, re.MULTILINE)


USES = _split(_USES)


class Try(NamedTuple):
    """One script, and the value that it gets."""

    use: str
    way: str
    around: str
    value: str

    @property
    def script(self) -> str:
        """The text of its author."""
        return f"{self.way}\n{self.around.format(self.use)}\n"


def draw(tries: int, seed: int) -> list[Try]:
    """Draw tries: every use as often as any other."""
    dice = random.Random(seed)
    return [
        Try(USES[n % len(USES)], dice.choice(WAYS), dice.choice(AROUND), dice.choice(VALUES))
        for n in range(tries)
    ]


def judge(one: Try) -> str:
    """Play a try: ``refused``, ``harmless`` or ``ran``."""
    try:
        made = rewrite(one.script)
    except NotRewritable:
        return "refused"
    values = {slot.name: "1" if slot.is_number else one.value for slot in made.slots}
    return "ran" if play(made.text, values, one.value)[0] else "harmless"


def play(script: str, values: dict[str, str], value: str) -> tuple[bool, str]:
    """Play a script in a folder of its own.

    Returns:
        True if the command of a value has run; and what it has said.
    """
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder, MARK)
        said = {"ARGUMENTS": value, "INPUTS_NAME": value, "LOOP_PREV_OUTPUT": value}
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "MARK": str(mark)}
        with subprocess.Popen(
            ["bash", "-c", script],
            env={**environment, **said, "USER_MESSAGE": value, "INPUTS_COUNT": value, **values},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as bash:
            try:
                out, _ = bash.communicate(timeout=SECONDS)
            finally:  # one that calls itself without end leaves others behind
                with suppress(ProcessLookupError):
                    os.killpg(bash.pid, signal.SIGKILL)
        return mark.exists(), f"{out.decode(errors='replace')}{bash.returncode}"


def main() -> int:
    """Play the tries, and print the figures."""
    options = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    options.add_argument("--tries", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    tries = draw(given.tries, given.seed)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ends = [*pool.map(judge, tries)]
    counts = Counter(ends)
    print(json.dumps({"uses": len(USES), "tries": len(tries), "seed": given.seed, **counts}))
    for one, end in zip(tries, ends, strict=True):
        if end == "ran":
            print(f"FAILED {one!r}")
    return 1 if counts["ran"] or not tries else 0


if __name__ == "__main__":
    sys.exit(main())
