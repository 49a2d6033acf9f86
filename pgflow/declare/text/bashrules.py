"""Rules for bash that reads values: what is refused, and what is warned of.

A value is a text of an agent or a person. Where bash would take it for the name of a variable, for
the name of a program or for a text that it expands, nothing can make that safe: an index within a
name runs commands. So it is refused. Where a script hands it to another program as code, it is
warned of, by the name of that program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, Final

from pgflow.declare.text.bash import (
    COMPARED,
    DECLARES,
    IDENTIFIER,
    Names,
    commands,
    flags_of,
    name_of,
    parser,
    places,
    text_of,
    upwards,
    walk,
)
from pgflow.declare.text.bashcode import RUNS_CODE, SAY, SHELLS, WRAPPERS, Code, Finding
from pgflow.declare.text.bashvalues import (
    ARGUMENTS,
    READERS,
    Values,
    command_name,
    is_all_indexes,
    unwrapped,
    words_of,
)

_TAKES_NAMES: Final = "takes the name of a variable from"
_NAME_IT: Final = "an index in a name runs commands, so write the name itself"

_EVALUATED_VARIABLES: Final = """
    BASHOPTS BASH_ALIASES BASH_CMDS BASH_ENV BROWSER EDITOR ENV FCEDIT GIT_ASKPASS GIT_EDITOR
    GIT_EXEC_PATH GIT_EXTERNAL_DIFF GIT_PAGER GIT_PROXY_COMMAND GIT_SEQUENCE_EDITOR GIT_SSH
    GIT_SSH_COMMAND GIT_TEMPLATE_DIR GOFLAGS INPUTRC JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS LD_AUDIT
    LD_LIBRARY_PATH LD_PRELOAD LESSCLOSE LESSOPEN LUA_INIT MAKEFILES MAKEFLAGS MANPAGER NODE_OPTIONS
    PAGER PATH PERL5DB PERL5LIB PERL5OPT PROMPT_COMMAND PS0 PS1 PS2 PS4 PYTHONBREAKPOINT PYTHONHOME
    PYTHONPATH PYTHONSTARTUP RSYNC_RSH RUBYLIB RUBYOPT RUSTC_WRAPPER SHELLOPTS SSH_ASKPASS
    SUDO_ASKPASS SUDO_EDITOR TAR_OPTIONS VISUAL ZDOTDIR
"""
"""Variables that say which programs run."""

_WRAPPERS_ARGUMENTS: Final = {
    "doas": "uC", "env": "uCS", "exec": "a", "ionice": "cnpPu", "ltrace": "aeonpsu", "nice": "n",
    "stdbuf": "ioe", "strace": "aeobEIOPpsSuX", "sudo": "ughpCrtUDRT", "taskset": "", "time": "of",
    "timeout": "ks", "flock": "wE", "chroot": "", "chrt": "TPD", "gosu": "", "setpriv": "",
    "prlimit": "", "unshare": "SGR",
}  # fmt: skip
"""Last letters of the options that take the next word."""
_SECOND: Final = frozenset({"chroot", "chrt", "flock", "gosu", "taskset", "timeout"})
"""Those whose program is the second word."""
_READS_NAMES: Final = DECLARES | {
    "[", "coproc", "getopts", "let", "mapfile", "printf", "read", "readarray", "test", "unset",
    "wait",
}  # fmt: skip
"""Commands of bash that take names of variables, or evaluate an index."""
_WITH_ARGUMENT: Final = {"read": "dnNptui", "mapfile": "dnOsucC", "readarray": "dnOsucC"}
_IS_ASSIGNMENT: Final = re.compile(r"[\"']?[A-Za-z_]\w*\+?=")
_DESCRIPTOR: Final = re.compile(rb"\{[A-Za-z_]\w*\[[^]\n]*\]\}(?=[<>])")
"""Elements of arrays that keep the number of an opened file: bash evaluates the index."""
_ESCAPED: Final = re.compile(rb"\n[ \t]*\\(?=[\w\"'])")
_TEXTS: Final = frozenset({"comment", "heredoc_body", "raw_string", "string"})
_BRACKETS: Final = re.compile(rb"(\w+)\[([^]]*)")
_EXPANDS: Final = re.compile(r"[\"']?\$\{?\w")
_RUNS: Final = re.compile(rb"`|\$\(|\$\[|\$\{!|\$\{\w+\[|\$\{\w+:[^-+=?]")
"""Beginnings of what bash runs or evaluates within a text."""
_QUOTED: Final = frozenset({"string", "raw_string", "ansi_c_string", "concatenation"})
_SEEN: Final = ("arithmetic_expansion", "command_substitution", "expansion")
_POSITIONAL: Final = re.compile(rb"\$\{?[!#]?[0-9@*]")
_ZERO: Final = re.compile(rb"\$(\{?)0\b")
_REFERENCE: Final = re.compile(r"\$[{!#]*([A-Za-z_]\w*|[0-9@*])")


class Rules:
    """The rules on one script.

    Args:
        values: Its values.
        names: Names that it declares.
        source: Its text as its author wrote it, in UTF-8.
    """

    def __init__(self, values: Values, names: Names, source: bytes) -> None:
        self._values, self._names, self._source = values, names, source
        self._code = Code(values, self.what)

    def findings(self, root: Any) -> Iterator[Finding]:
        """Yield the findings on the script, in the order of its text."""
        yield from self._unseen(root)
        for node in commands(root):
            match node.type:
                case "command":
                    yield from self._command(node)
                case "declaration_command":
                    yield from self._declaration(node)
                case "unset_command":
                    words = words_of(node)
                    is_split = any(word.text.startswith(b"[") for word in words)  # unset a[1]
                    yield from self._named(node, "unset", [node] if is_split else words)
                case "test_command":
                    yield from self._test(list(_operands(node)))
                case "variable_assignment":
                    yield from self._assignment(node)
                case "for_statement":
                    values = node.children_by_field_name("value")
                    yield from self._special(node, [name_of(node)], values)
                case "binary_expression":
                    yield from self._compared(node)
                case "expansion":
                    yield from self._expansion(node)
                case "heredoc_redirect":
                    yield from self._heredoc(node)
                case "file_redirect" if self._says(node) and b">&" in node.text:
                    yield self._refused(node, ">& expands twice", "write > file 2>&1")
                case _:
                    pass

    @staticmethod
    def _unseen(root: Any) -> Iterator[Finding]:
        """Texts that the lexer takes for something else."""
        for found in _DESCRIPTOR.finditer(root.text):
            message = f"{found[0].decode()} is a descriptor in an element of an array"
            yield Finding(root.start_byte + found.start(), f"{message}: use a variable of its own")
        for found in _ESCAPED.finditer(root.text):
            at = root.start_byte + found.end() - 1
            around = upwards(root.descendant_for_byte_range(at, at + 1))
            if _TEXTS.isdisjoint(node.type for node in around):
                message = "the lexer does not see that a line begins with a backslash"
                yield Finding(at, f"{message}: leave it away")

    # ------------------------------------------------------------ helpers

    def _says(self, node: Any) -> bool:
        return self._values.carried_by(node)

    def what(self, node: Any) -> str:
        """Return the value in a part of a script, as its author wrote it."""
        span = self._values.reference_in(node)
        if span is None:
            one = next((one for one in walk(node) if self._values.expands(one)), node)
            span = one.byte_range
        text = self._source[span[0] : span[1]].decode("utf-8", "replace")
        return " ".join(text.split())[:60]

    def _refused(self, node: Any, message: str, remedy: str) -> Finding:
        return Finding(node.start_byte, f"{message} {self.what(node)}: {remedy}")

    def _is_name(self, word: Any) -> bool:
        """Return True if the name that a word says, or its index, depends on a value."""
        if self._says(word):
            return True
        return any(
            name.decode() not in self._names.maps and self._names_value(index)
            for name, index in _BRACKETS.findall(word.text)
        )

    def _names_value(self, text: bytes) -> bool:
        """Return True if a text of arithmetic names a variable that carries a value."""
        read = {name.decode() for name in IDENTIFIER.findall(text)}
        read |= set(_REFERENCE.findall(text.decode("utf-8", "replace")))
        return not read.isdisjoint(self._values.names)

    # ------------------------------------------------------------ names and programs

    def _command(self, command: Any) -> Iterator[Finding]:
        yield from self._program(command, command_name(command), words_of(command))
        name, words = unwrapped(command)
        yield from self._named_so(command, name, words) if name else self._held(command)
        if name == "alias" or (name == "hash" and words and text_of(words[0]) == "-p"):
            yield from self._aliases(name, words)

    @staticmethod
    def _aliases(name: str, words: list[Any]) -> Iterator[Finding]:
        for word in words:
            text = text_of(word)
            given = re.findall(r"[\w.\[]+", text.partition("=")[2] if name == "alias" else text)
            for one in filter((_READS_NAMES | RUNS_CODE).__contains__, given):
                message = f"{name} gives {one} another name: write it where it runs"
                yield Finding(word.start_byte, message, is_error=False)

    def _held(self, command: Any) -> Iterator[Finding]:
        """Yield what a command does whose name is in a variable, as if it was written there."""
        word, words = _program_of(command)
        if word is None or self._says(word):
            return
        if self._values.is_written(word):
            message = f"{text_of(word)} is a file that a value was written to, and runs"
            yield Finding(word.start_byte, f"{message}: write the command itself", False)
        names = self._values.texts_in(word)
        if names is None and any(map(self._says, words)):
            message = f"{text_of(word)} may name eval or its like, and is given"
            yield Finding(
                word.start_byte, f"{message} {self.what(words[0].parent)}: write the name", False
            )
        for name, *rest in filter(None, map(str.split, names or ())):
            programs = {one.rpartition("/")[2] for one in rest} & (_READS_NAMES | RUNS_CODE)
            yield from self._named_so(command, name.rpartition("/")[2], words)
            is_risky = programs or (rest and name.rpartition("/")[2] in RUNS_CODE)
            if is_risky and any(map(self._says, words)):
                message = f"{text_of(word)} runs {name}, and is given a value"
                yield Finding(word.start_byte, f"{message}: write the command itself", False)

    def _named_so(self, command: Any, name: str, words: list[Any]) -> Iterator[Finding]:
        match name:
            case "declare" | "local" | "typeset" | "readonly" | "export":
                for word in filter(self._is_name, words):
                    yield self._refused(word, f"{name} {_TAKES_NAMES}", f"begin with {name}")
            case "read" | "mapfile" | "readarray":
                yield from self._reader(command, name, words)
            case "printf" if words:
                yield from self._printf(command, words)
            case "getopts":
                is_spread = bool(words) and _is_spread(words[0])
                yield from self._named(command, name, words[not is_spread : 2])
                if "OPTARG" in self._values.names or any(map(self._says, words[2:])):
                    yield from self._special(command, ["OPTARG"], None)
            case "coproc" | "unset":
                yield from self._named(command, name, words if name == "unset" else words[:1])
                yield from self._code.findings(command, name, words)
            case "wait":
                after = [n for n, word in enumerate(words) if text_of(word).startswith("-p")]
                yield from self._named(
                    command, "wait -p", [one for n in after for one in words[n : n + 2]]
                )
            case "test" | "[":
                yield from self._test(words)
            case "let":
                yield from self._let(words)
            case _:
                yield from self._shell(command, name, words)
                yield from self._code.findings(command, name, words)

    def _printf(self, command: Any, words: list[Any]) -> Iterator[Finding]:
        first = text_of(words[0])
        if first == "-v" and words[1:]:
            yield from self._named(command, "printf -v", words[1:2])
            yield from self._special(command, [text_of(words[1])], words[2:])
        elif self._says(words[0]) and first.startswith("-v"):
            yield from self._named(command, "printf -v", words[:1])
        elif (
            self._says(words[0])
            and (words[1:] or words[0].type != "string" or _is_spread(words[0]))
            and re.match(r"[\"']?[$`]", first)
        ):
            yield self._refused(
                words[0], "printf takes its options from", "write printf '%s' before it"
            )

    def _program(self, command: Any, name: str, words: list[Any]) -> Iterator[Finding]:
        """Yield the name of a program, also behind ``exec`` and its like."""
        if name == "env":
            for word in filter(self._says, words):
                given = text_of(word).partition("=")[0].strip("\"'")
                yield from self._chooses(word, given)
        if name in WRAPPERS:
            if name == "command" and words and text_of(words[0]) in ("-v", "-V"):
                return
            program = _first_program(name, words)
        else:
            program = command.child_by_field_name("name")
        if program is None or not self._says(program):
            return
        if re.match(r"[\"']?\$", text_of(program)):
            yield self._refused(
                program, "bash takes the name of a program from", "choose it with case ... in"
            )
        else:
            message = (
                f"{self.what(program)} chooses the program that runs: choose it with case ... in"
            )
            yield Finding(program.start_byte, message, is_error=False)

    def _named(self, command: Any, name: str, words: list[Any]) -> Iterator[Finding]:
        """Words that are names of variables."""
        del command
        for word in words:
            if self._is_name(word):
                yield self._refused(word, f"{name} {_TAKES_NAMES}", _NAME_IT)

    def _reader(self, command: Any, name: str, words: list[Any]) -> Iterator[Finding]:
        skip = ""
        named = []
        for word in words:
            text = text_of(word)
            if skip:
                if skip == "C" and self._says(word):
                    yield self._refused(word, f"{name} -C runs", "write the command itself")
                skip = ""
            elif re.fullmatch(r"-[A-Za-z]+", text):
                skip = text[-1] if text[-1] in _WITH_ARGUMENT[name] else ""
            else:
                named.append(word)
        yield from self._named(command, name, named)
        texts = [text_of(word) for word in named] or [READERS[name]]
        if self._values.names.intersection(texts):
            yield from self._special(command, texts, None)

    def _special(self, node: Any, names: list[str], values: list[Any] | None) -> Iterator[Finding]:
        """Variables with ``-i`` or ``-n`` that get a value in another way than by an assignment."""
        if values is not None and not any(self._says(value) for value in values):
            return
        for name in names:
            yield from self._chooses(node, name)
            if name in self._names.integers:
                message = f"{name} is an integer, so bash evaluates what it is given here"
                yield Finding(node.start_byte, f"{message}: read it into another variable first")
            elif name in self._names.references:
                message = f"{name} has declare -n, so bash takes what it is given for a name"
                yield Finding(node.start_byte, f"{message}: {_NAME_IT}")

    def _chooses(self, node: Any, name: str) -> Iterator[Finding]:
        """A variable that says which programs run, and is given a value."""
        if name in _EVALUATED_VARIABLES.split() or name.startswith("GIT_CONFIG"):
            message = f"{name} says which programs run, and is given"
            yield self._refused(node, message, "give it a text of your own")

    def _declaration(self, node: Any) -> Iterator[Finding]:
        name, flags = text_of(node.children[0]), flags_of(node)
        if set(flags) & set("pfF"):
            return
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                yield from self._declared(child, name, flags)
            elif not self._is_name(child):
                continue
            elif not _IS_ASSIGNMENT.match(text_of(child)):
                yield self._refused(child, f"{name} {_TAKES_NAMES}", _NAME_IT)
            elif set(flags) & set("aAin"):
                yield self._refused(
                    child, f"{name} -{flags} evaluates", "assign it in a line of its own"
                )

    def _declared(self, node: Any, command: str, flags: str) -> Iterator[Finding]:
        value, name = node.child_by_field_name("value"), node.child_by_field_name("name")
        if name is not None and self._is_name(name):
            yield self._refused(name, f"{command} evaluates", "assign it in a line of its own")
        if value is None or not self._says(value):
            return
        is_array = set(flags) & set("aA") or (
            command in DECLARES - {"export"} and name_of(node) in self._names.arrays
        )
        if is_array and value.type != "array":
            remedy = f'write {name_of(node)}=("...")'
            yield self._refused(value, f"{command} of an array evaluates", remedy)

    def _assignment(self, node: Any) -> Iterator[Finding]:
        name, value = name_of(node), node.child_by_field_name("value")
        if value is not None and name in self._names.integers:
            for word in value.named_children if value.type == "array" else [value]:
                read = {one.decode() for one in IDENTIFIER.findall(word.text)}
                is_word = word.type == "word" or word.type in _QUOTED
                if is_word and word.text.decode() not in read and self._reads(read, word, False):
                    message = f"{name} is an integer: bash evaluates"
                    yield self._refused(word, message, "write $(( ))")
        if value is not None and name in self._names.references and self._is_name(value):
            yield from self._special(node, [name], None)
        if value is not None and (self._says(value) or self._values.is_written(value)):
            yield from self._chooses(value, name)

    def _compared(self, node: Any) -> Iterator[Finding]:
        """Yield arithmetic that is compared without a ``$``: ``[[ a[0] -gt 1 ]]``, ``[[ x+1 -gt 1
        ]]``.
        """
        for side in node.children_by_field_name("left") + node.children_by_field_name("right"):
            read = {name.decode() for name in IDENTIFIER.findall(side.text)}
            if side.type == "concatenation" and b"[" in side.text and self._reads(read, side):
                yield self._refused(side, "bash evaluates", "write ${...} around it")
            elif (
                (
                    side.type == "word"
                    or (side.type in _QUOTED and not any(map(_is_read, walk(side))))
                )
                and text_of(node.child_by_field_name("operator")) in COMPARED
                and not IDENTIFIER.fullmatch(side.text)
                and self._reads(read, side, as_value=False)
            ):
                yield self._refused(side, "bash evaluates", "write $(( ... )) around it")

    def _reads(self, names: set[str], node: Any, as_value: bool = True) -> bool:
        return (as_value and self._says(node)) or not names.isdisjoint(self._values.names)

    def _test(self, words: list[Any]) -> Iterator[Finding]:
        """``-v`` and its like, and two values of which the first might be such an operator."""
        yield from self._spread(words)
        for word, following in pairwise(words):
            operator = text_of(word)
            if operator in ("-v", "-R") and self._is_name(following):
                is_element = b"[" in following.text
                remedy = "write [[ -n ${...+x} ]] instead" if is_element else _NAME_IT
                yield self._refused(following, f"{operator} {_TAKES_NAMES}", remedy)
            elif self._says(following) and (self._says(word) or _EXPANDS.match(operator)):
                yield self._refused(
                    word, "test may take for an operator", "write the operator between them"
                )

    def _spread(self, words: list[Any]) -> Iterator[Finding]:
        """Words that are several, of which one might be an operator."""
        for word in words:
            if _is_spread(word) and self._says(word):
                yield self._refused(word, "test may take for operators", "write them one by one")

    def _let(self, words: list[Any]) -> Iterator[Finding]:
        for word in words:
            read = {name.decode() for name in IDENTIFIER.findall(word.text)}
            read |= set(_REFERENCE.findall(text_of(word)))
            if not read.isdisjoint(self._values.names):
                yield self._refused(word, "let evaluates", "write $(( ... )) instead")

    def _shell(self, command: Any, name: str, words: list[Any]) -> Iterator[Finding]:
        """Yield the texts that bash or another shell reads, which another program may start."""
        if name in ("eval", "trap"):
            yield from self._inner(name, words)
        if name in SAY:
            return
        for n, program in enumerate([name, *(text_of(word).rpartition("/")[2] for word in words)]):
            if program in SHELLS:
                here = command.children_by_field_name("redirect")
                given = [part for one in here for part in one.named_children]
                yield from self._inner(program, words[n:] + given)
                return

    def _inner(self, name: str, words: list[Any]) -> Iterator[Finding]:
        """Yield a text within quotes that bash reads again, and the names that it evaluates
        there.
        """
        for word in words:
            if word.type not in ("raw_string", "string") or self._says(word):
                continue
            text = word.text[1:-1].replace(b"\\$", b"$")
            if name in SHELLS:  # the first argument behind -c
                text = _ZERO.sub(rb"$\g<1>1", text)
            root = parser().parse(text).root_node
            names = self._values.names
            if any(map(self._says, words)):
                names |= {ARGUMENTS}
            values = Values(root, (), names)
            rules = Rules(values, self._names, word.text[1:-1])
            read = {
                match.decode()
                for place in places(root, self._names)
                for match in re.findall(rb"[A-Za-z_]\w*", place.node.text)
            }
            if ARGUMENTS in names and _POSITIONAL.search(text):
                read |= {ARGUMENTS} if places(root, self._names) else set()
            inner = next(rules.findings(root), None)
            named = sorted(read & values.names)
            if name not in SHELLS and (given := sorted(values.names - names)):
                message = f"{name} runs a text in which {given[0]} gets a value: assign it outside"
                yield Finding(word.start_byte, message, False)
            if inner is not None or named:
                why = f"evaluates {named[0]}" if inner is None else inner.message
                yield Finding(word.start_byte, f"{name} runs a text in which bash {why}", False)

    def _expansion(self, node: Any) -> Iterator[Finding]:
        signs = [text_of(child) for child in node.children]
        for child in node.children:
            if child.type == "regex":
                yield from self._pattern(child)
        if {":=", "="} & set(signs):
            yield from self._special(node, [name_of(node)], [node.children[-2]])
        is_last = signs[1:3] == ["!", "#"] and ARGUMENTS in self._values.names
        if not self._values.expands(node) and not is_last:
            return
        if signs[1:2] == ["!"] and not ({"@", "*"} & set(signs[2:])) and not is_all_indexes(node):
            yield self._refused(node, f"${{!...}} {_TAKES_NAMES}", "choose with case ... in")
        if "@" in signs and "P" in signs[signs.index("@") :]:
            yield self._refused(node, "${...@P} expands the text of", "leave the @P away")

    def _pattern(self, pattern: Any) -> Iterator[Finding]:
        """Commands and names in the pattern of ``${x#...}``, which is a text for the lexer."""
        found = _RUNS.search(pattern.text)
        if found is not None and (self._says(pattern) or self._names_value(pattern.text)):
            message = f"{found[0].decode()} in a pattern that has"
            yield self._refused(pattern, message, "put it into a variable first")

    def _heredoc(self, redirect: Any) -> Iterator[Finding]:
        """Parts of a heredoc that bash evaluates, and that the lexer takes for text."""
        ends = {one.type: one for one in redirect.children}
        start, end = ends.get("heredoc_start"), ends.get("heredoc_end")
        if start is None or end is None or re.search(rb"['\"\\]", start.text):
            return
        text = self._source[start.end_byte : end.start_byte]
        read = {name.decode() for name in re.findall(rb"[A-Za-z_]\w*", text)}
        if not self._says(redirect) and read.isdisjoint(self._values.names):
            return
        seen = [one for one in walk(redirect) if one.type in _SEEN]
        for found in re.finditer(rb"(?<!\\)(?:`|\$\(\(|\$\[|\$\{!)", text):
            at = start.end_byte + found.start()
            if not any(one.start_byte <= at < one.end_byte for one in seen):
                message = f"{found[0].decode()} in a heredoc that has a value"
                yield Finding(at, f"{message}: put it into a variable first, by $( ) or $(( ))")


def _first_program(wrapper: str, words: list[Any]) -> Any | None:
    """Return the word that names the program that a wrapper runs."""
    found = (
        word
        for n, word in enumerate(words)
        if not re.match(r"-|[A-Za-z_]\w*=", text_of(word))
        and not (n and _takes_argument(wrapper, text_of(words[n - 1])))
    )
    return next(islice(found, wrapper in _SECOND, None), None)


def _takes_argument(wrapper: str, option: str) -> bool:
    """Return True if the word behind an option of a wrapper belongs to it."""
    if option.startswith("--"):
        return len(option) > 2 and "=" not in option
    return option[:1] == "-" and option[-1:] in _WRAPPERS_ARGUMENTS.get(wrapper, "-")


def _is_read(node: Any) -> bool:
    """Return True for what bash replaces within a word."""
    return node.type in ("simple_expansion", *_SEEN)


def _program_of(command: Any) -> tuple[Any | None, list[Any]]:
    """Return the word that names the program of a command, and its arguments."""
    word, words = command.child_by_field_name("name"), words_of(command)
    while word is not None and text_of(word) in WRAPPERS:
        word = _first_program(text_of(word), words)
        words = words[words.index(word) + 1 :] if word is not None else []
    return word, words


def _is_spread(word: Any) -> bool:
    """Return True for a word that is several: ``"$@"``, ``"${a[@]}"``."""
    inner = (one for one in walk(word) if one.type in ("simple_expansion", "expansion"))
    return any(re.match(rb"\$\{?(@|\w+\[@\])", one.text) for one in inner)


def _operands(node: Any) -> Iterator[Any]:
    """Yield the words of ``[ ... ]`` and ``[[ ... ]]``, operators too."""
    for child in node.children:
        if child.type.endswith("_expression") or child.type in ("ERROR", "test_command"):
            yield from _operands(child)
        else:
            yield child
