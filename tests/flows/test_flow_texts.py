"""The language of workflows in SQL: what a text means, and what is refused, with line and column."""

from __future__ import annotations

import random
import re

import flowkit
import pytest

RIGHT = {
    "nothing": ("begin end", None, []),
    "a value": ("begin return 1 + 1; end;", 2, []),
    "text is text": ("begin return 'it''s'; end", "it's", []),
    "a step without a name": ("begin insert into mark (what) values ('a'); return 1; end", 1,
        ["a"]),
    "a step": ("begin a: insert into mark (what) values ('a'); end", None, ["a"]),
    "two statements are one step": ("declare n int; begin a: n := 1; n := n + 1; return n; end", 2,
        []),
    "variables live on": (
        "declare n int := 3; t text; begin a: n := n * 2; b: t := 'n=' || n; return t; end", "n=6",
        []),
    "types are kept": ((
        "declare a int[] := '{1,2}'; d date := '2026-02-28'; j jsonb := '{\"x\": [null]}'; n numeric(6,2) := 1.5;"
            " begin a: a := a || 3; b: d := d + 1; return jsonb_build_array(a, d, j, n); end"),
        [[1, 2, 3], "2026-03-01", {"x": [None]}, 1.5], []),
    "a row is kept": ((
        "declare r mark; begin a: insert into mark (what) values ('x') returning * into r; b: r.what := r.what || 'y';"
            " return r.what; end"), "xy", ["x"]),
    "%type and %rowtype": (
        "declare w mark.what%type := 'q'; r mark%rowtype; begin a: r.what := w; return r.what; end",
        "q", []),
    "a record lives within a step": ((
        "declare r record; n int := 0; begin a: for r in select * from generate_series(1, 3) g loop n := n + r.g;"
            " end loop; return n; end"), 6, []),
    "constant and not null": ("declare c constant int not null := 4; begin return c; end", 4, []),
    "comments and quotes hide words": ((
        "begin -- return 1; end\n a: /* if /* sleep */ then */ insert into mark (what) values ('wait for x; end');"
            " return $q$ loop $q$ || 'run'; end"), " loop run", ["wait for x; end"]),
    "quoted names": ('declare "Big One" int := 1; begin "Step A": "Big One" := "Big One" + 1; return "Big One"; end',
        2, []),
    "names like words": (
        "declare sleep int := 1; wait int; begin a: wait := sleep; sleep := 2; return wait + sleep; end",
        3, []),
    "if": (("declare n int := 2; begin if n = 1 then return 'one'; elsif n = 2 then a: insert into mark (what) values ('two');"
        " else return 'more'; end if; return 'end'; end"), "end", ["two"]),
    "else": ("begin if false then return 1; else return 2; end if; end", 2, []),
    "unknown is false": ("begin if null then return 1; end if; return 2; end", 2, []),
    "an if without steps is part of one": (
        "declare n int := 0; begin a: if n = 0 then n := 5; else n := 6; end if; return n; end", 5,
        []),
    "case of a value": ((
        "declare n int := 3; begin case n when 1, 2 then return 'low'; when 3 then a: insert into mark (what) values ('3');"
            " else return 'high'; end case; return 'out'; end"), "out", ["3"]),
    "case of conditions": (
        "declare n int := 30; begin case when n < 10 then return 'low'; when n < 100 then return 'mid'; end case; end",
        "mid", []),
    "a case in an expression": ((
        "declare n int := 1; begin a: n := case when n = 1 then 7 else 8 end; if case when n = 7 then true else false end"
            " then return n; end if; end"), 7, []),
    "loop": ((
        "declare n int := 0; begin loop n := n + 1; exit when n = 3; a: insert into mark (what) values (n::text);"
            " end loop; return n; end"), 3, ["1", "2"]),
    "while": ("declare n int := 0; begin while n < 3 loop a: n := n + 1; end loop; return n; end",
        3, []),
    "continue": ((
        "declare n int := 0; begin while n < 4 loop a: n := n + 1; continue when n % 2 = 0; b: insert into mark (what)"
            " values (n::text); end loop; end"), None, ["1", "3"]),
    "exit in an if": (
        "declare n int := 0; begin loop a: n := n + 1; if n = 2 then exit; end if; end loop; return n; end",
        2, []),
    "an exit within a step is its own": (
        "declare n int := 0; begin a: loop n := n + 1; exit when n = 9; end loop; return n; end", 9,
        []),
    "labels of loops": ((
        "declare i int; j int; begin <<out>> for i in 1 .. 3 loop for j in 1 .. 3 loop continue out when j = 2;"
            " exit out when i = 3; a: insert into mark (what) values (i || '/' || j); end loop; end loop; end"),
        None, ["1/1", "2/1"]),
    "numbers": (
        "begin for i in 2 .. 4 loop a: insert into mark (what) values (i::text); end loop; end",
        None, ["2", "3", "4"]),
    "rows": ((
        "declare r mark; n int; begin for n in select g * 10 from generate_series(1, 2) g loop"
            " a: insert into mark (what) values (n::text); end loop;"
            " for r in select * from mark order by n loop b: insert into mark (what) values (r.what || '!'); end loop; end"),
        None, ["10", "20", "10!", "20!"]),
    "rows as documents": ((
        "declare d jsonb; begin for d in select 1 as a, 'x' as b loop a: insert into mark (what) values (d::text);"
            " end loop; end"), None, ['{"a": 1, "b": "x"}']),
    "no rows": (
        "declare n int := 5; begin for n in select 1 where false loop return 1; end loop; return n; end",
        5, []),
    "a return in a loop": (
        "begin for i in 1 .. 9 loop if i = 4 then return i; end if; end loop; end", 4, []),
    "a block within a step": (
        "declare n int := 1; begin a: begin n := 1 / 0; exception when division_by_zero then n := 8; end; return n; end",
        8, []),
    "a retry that is not needed": ("begin a retry 3 every '1 s': null; return 1; end", 1, []),
    "undo that is not needed": (
        "begin a: insert into mark (what) values ('a'); undo a: begin delete from mark; end; return 1; end",
        1, ["a"]),
    "a sleep": ("begin sleep '0 s'; sleep until now() - interval '1 day'; return 1; end", 1, []),
    "the facts of the run": ("begin return run->>'key'; end", "k", []),
    "a variable by the name of the workflow": (
        "declare what text := 'v'; begin a: insert into mark (what) values (w.what); return what; end",
        "v", ["v"]),
    "dollar quotes within": ("begin a: execute $x$ insert into mark (what) values ('d') $x$; end",
        None, ["d"]),
    "a handler": ((
        "begin a: insert into mark (what) values (1 / 0); exception b: insert into mark (what) values (error->>'sqlstate');"
            " return error->>'step'; end"), "a", ["22012"]),
    "a handler of one error": ((
        "begin a: insert into mark (what) values (1 / 0); exception when division_by_zero or sqlstate '22P02' then"
            " b: insert into mark (what) values ('b'); return error->>'sqlstate'; end"), "22012",
        ["b"]),
    "handlers of several errors": ((
        "begin a: perform 'x'::int; exception when division_by_zero then return 1; when data_exception then"
            " if true then b: null; end if; return 2; when others then return 3; end"), 2, []),
    "a handler of the rest": (
        "begin a: raise exception 'x'; exception when division_by_zero then return 1; when others then b: null; end",
        None, []),
    "spending without a budget": (
        "declare n int := 3; begin spend jsonb_build_object('usd', n, 'calls', 1); return n; end",
        3, []),
    "publishing": (
        "begin publish jsonb_build_object('n', 1) to 'orders' key 'o1'; publish 2 to 'or' || 'ders'; return 1; end",
        1, []),
    "a lock": (
        "begin lock 'k' || 1 loop a: insert into mark (what) values ('a'); end loop; return 1; end",
        1, ["a"]),
    "a lock is left": ((
        "begin <<out>> for i in 1 .. 9 loop lock 'k' loop lock 'l' loop a: insert into mark (what) values (i::text);"
            " exit out when i = 2; continue when i = 1; end loop; end loop; end loop; lock 'k' timeout '0 s' loop"
            " exit; end loop; return timed_out; end"), False, ["1", "2"]),
    "the result comes in a lock": ("begin lock 'k' loop return 5; end loop; end", 5, []),
    "lock table is SQL": ("begin a: lock table mark in share mode; return 1; end", 1, []),
    "a wait for an event that does not come": (
        "declare e jsonb := '{}'; begin wait for event 'x' matching '{\"a\": 1}' key 'k' timeout '0 s' into e; return timed_out; end",
        True, []),
    "a gate that is not answered": (
        "declare v jsonb; begin ask pay(n => 1) of 'bob', 'carl' quorum 2 timeout '0 s' into v; return jsonb_build_array(timed_out, v->>'verdict'); end",
        [True, "expire"], []),
    "found lives on": ((
        "declare r mark; begin a: insert into mark (what) values ('a'); select * into r from mark where what = 'z';"
            " if not found then b: update mark set what = 'b'; end if; sleep '0 s'; return found; end"), True, ["b"]),
    "plpgsql's own words are names in quotes": (
        'declare "loop" mark; "if" int := 1; begin a: "if" := "if" + 1; return "if"; end', 2, []),
    "letters of any language": ((
        "declare größe int := 1; Ölstand text := $é$x$é$; begin schritt_ä: größe := größe + 1;"
            " return größe || Ölstand; end"), "2x", []),
    "rows that a change returns": ((
        "declare r mark; begin a: insert into mark (what) values ('1'), ('2'); for r in update mark set what = what || '!'"
            " returning * loop b: insert into mark (what) values (r.what || 'b'); end loop; end"), None,
        ["1!", "2!", "1!b", "2!b"]),
    "a compensation sees what its step has left": ((
        "declare n int := 0; begin begin for i in 1 .. 2 loop a: n := n + 1; undo a: begin insert into mark (what)"
            " values ('undo ' || i || n); n := 7; end; end loop; b: n := 9; perform 1 / 0; exception when others then"
            " return n; end; end"), 7, ["undo 22", "undo 11"]),
    "a handler that ends": ("begin a: perform 1 / 0; exception when others then b: null; end", None,
        []),
}  # fmt: skip


def test_a_text_means_what_plpgsql_would(conn):
    conn.execute(flowkit.TABLES)
    for number, (name, (body, output, marks)) in enumerate(RIGHT.items()):
        flowkit.make(conn, "w()", body)
        key = f"k{number}" if "run->>" not in body else "k"
        conn.execute("delete from mark")
        flowkit.begin(conn, key=key)
        flowkit.work(conn)
        assert (name, *flowkit.ended(conn, key)) == (name, "completed", output, None)
        assert (name, flowkit.marks(conn)) == (name, marks)


WRONG = {
    "select 1": "line 1, column 1: the text begins with declare or begin",
    "begin a: select 1": "line 1, column 10: the statement does not end with ;",
    "begin return 1;": "line 1, column 15: the last end is missing",
    "begin\n  if true then\n return 1; end": "line 3, column 12: if is closed by end if",
    "begin\n  loop\n a: null;": "line 2, column 3: loop is not closed by end loop",
    "begin a: null; end if;": "line 1, column 16: end if closes nothing",
    "begin\n a: selec 1; end": 'line 2, column 5: syntax error at or near "selec"',
    "declare\n x it;\nbegin a: null; end": 'line 2, column 4: type "it" does not exist',
    "begin a: null; end; return 1;": "line 1, column 21: nothing follows the last end",
    "begin a: null; a: null; end": "line 1, column 16: the step a is there already",
    "begin a: wait for x; end": "line 1, column 7: the step a has no statement",
    "begin a: null; undo b: null; end": "line 1, column 21: undo b: there is no such step before it",
    "begin a: null; undo a: null; undo a: null; end": "line 1, column 35: the step a has an undo already",
    "begin a: null; undo a: begin sleep '1 s'; end; end": "line 1, column 24: a compensation is one step: nothing durable can be in it",
    "begin a retry 3 every 10: null; end": "line 1, column 23: every takes an interval in quotes: every '10 s'",
    "begin a timeout '-1 s': null; end": "line 1, column 17: timeout takes an interval in quotes: timeout '10 s'",
    "begin a timeout '1 s' timeout '2 s': null; end": "line 1, column 23: a step begins as: name [timeout '5 s'] [retry 3 [every '10 s']]:",
    "begin a retry 3 each '1 s': null; end": "line 1, column 17: a step begins as: name [timeout '5 s'] [retry 3 [every '10 s']]:",
    "begin wait paid; end": "line 1, column 7: a wait is written as: wait for signal [timeout '3 days'] [into variable];",
    "begin wait for paid into nope; end": "line 1, column 26: the variable nope is not declared",
    "begin emit 'x'; end": "line 1, column 7: a value of a stream is written as: emit value to stream;",
    "begin wait for event 'x' into nope; end": "line 1, column 31: the variable nope is not declared",
    "begin wait for event 'x' timeout '1 s' timeout '2 s'; end": "line 1, column 40: timeout is not understood",
    "begin wait for event 'x' matching into a; end": "line 1, column 26: matching is not understood",
    "begin ask gate into a; end": "line 1, column 7: a gate is written as: ask gate(parameter => value, ...) [of approvers] [quorum 2] [timeout '3 days'] [into v];",
    "begin ask gate(n => 1) from 'x'; end": "line 1, column 24: from is not understood",
    "begin ask gate(n => 1) quorum 2 of 'x' into nope; end": "line 1, column 45: the variable nope is not declared",
    "begin spend; end": "line 1, column 7: what is spent is written as: spend '{\"usd\": 0.04}';",
    "begin publish 'x'; end": "line 1, column 7: an event is written as: publish payload to topic [key key];",
    "begin publish 'x' to 't' key; end": "line 1, column 7: an event is written as: publish payload to topic [key key];",
    "begin patched 'x'; end": "line 1, column 7: patched is not needed: a run keeps the version that it began with",
    "begin lock loop a: null; end loop; end": "line 1, column 7: a lock is written as: lock key [timeout '1 min'] loop ... end loop;",
    "begin lock 'k' loop a: null; end lock; end": "line 1, column 30: lock is closed by end loop",
    "begin lock 'k' loop a: null; end": "line 1, column 30: lock is closed by end loop",
    "begin\n lock 'k' loop a: null;": "line 2, column 2: lock is not closed by end loop",
    "begin lock 'k' loop a: null; end loop; exit; end": "line 1, column 40: exit stands in no loop",
    "begin\nexception when nonsense then a: null; end": 'line 2, column 16: unrecognized exception condition "nonsense"',
    "begin exception when others then a: null; when others then b: null; end": "line 1, column 43: when belongs to no case",
    "begin exception a: null; when others then b: null; end": "line 1, column 26: when belongs to no case",
    "begin exception when others a: null; end": "line 1, column 17: when is not complete",
    "begin case 1 b: when 1 then c: null; end case; end": "line 1, column 7: case is not complete",
    "begin set state a b; end": 'line 1, column 19: syntax error at or near "b"',
    "begin run child; end": "line 1, column 7: a child is written as: run workflow(parameter => value, ...) [into declared variable];",
    "begin run child(1); end": "line 1, column 17: arguments have names: parameter => value",
    "begin run child(a => 1) into nope; end": "line 1, column 30: the variable nope is not declared",
    "begin for each r in select 1; end": "line 1, column 7: for each is written as: for each row in query run workflow(...) [at most 10] [into v] [on failure continue];",
    "begin for each a in select 1 run c(x => 1); end": "line 1, column 16: a is a variable: give the rows of for each a name of their own",
    "begin for each r in select 1 run c(x => 1) at most 0; end": "line 1, column 44: at is not understood",
    "begin for r in select 1 loop a: null; end loop; end": "line 1, column 11: r is not declared with a type that can be kept between steps",
    "declare r record; begin for r in select 1 loop a: null; end loop; end": "line 1, column 29: r is not declared with a type that can be kept between steps",
    "begin for a in reverse 3 .. 1 loop b: null; end loop; end": "line 1, column 7: a loop with steps in it is written as: for variable in query loop, or in 1 .. 10 loop",
    "begin exit; end": "line 1, column 7: exit stands in no loop",
    "begin else a: null; end": "line 1, column 7: else belongs to no if",
    "begin begin a: sleep '1 s'; end; end": "line 1, column 13: the step a has no statement",
    "begin commit; end": "line 1, column 7: commit is not for a step: pgflow commits it",
    "begin x: null; if a = 1 then rollback; end if; end": "line 1, column 30: rollback is not for a step: pgflow commits it",
    "declare x int; begin foreach x in array '{1}'::int[] loop b: null; end loop; end": "line 1, column 22: a loop with steps in it over an array is written as: for variable in select unnest(array) loop",
    "begin raise; end": "line 1, column 7: raise alone is for the handler of an exception",
    "begin return next 1; end": "line 1, column 7: a workflow returns one value: no return next",
    "begin a: perform 'x; end": "line 1, column 18: a quote is not closed",
    "begin /* x": "line 1, column 10: a comment is not closed",
    "declare x int; x int; begin end": "line 1, column 16: the variable x is declared twice",
    "declare a text; begin end": "line 1, column 1: a variable has the name of a parameter",
    "declare run int; begin end": "line 1, column 9: run cannot be the name of a variable",
    "declare c cursor for select 1; begin end": "line 1, column 9: the variable c needs a type",
    "declare x nope.a%type; begin end": "line 1, column 11: the type nope.a%type names no column",
    "declare x int begin end": "line 1, column 9: the declaration of x does not end with ;",
}


def test_a_text_that_is_not_sound_is_refused_with_its_place(db):
    for body, message in WRONG.items():
        with db.transaction(force_rollback=True):
            assert (body, flowkit.refusal(db, body)) == (body, message)


def test_a_text_is_checked_whatever_the_session_checks(conn):
    conn.execute("set check_function_bodies = off")
    said = flowkit.refusal(conn, "begin a: selec 1; end")
    assert said == 'line 1, column 10: syntax error at or near "selec"'


@pytest.mark.parametrize(("signature", "message"), [
    ("w", "'w' is no signature of a workflow"),
    ("w(a)", "line 1, column 3: the variable a needs a type"),
    ("w(a int", "'w(a int' is no signature of a workflow"),
    ("1(a int)", "'1(a int)' is no signature of a workflow"),
    ('"a@b"()', "the name of a workflow has at most 50 bytes, and no @"),
    (f"{'w' * 51}()", "the name of a workflow has at most 50 bytes, and no @"),
])  # fmt: skip
def test_a_signature_looks_like_that_of_a_function(db, signature, message):
    with db.transaction(force_rollback=True):
        assert flowkit.refusal(db, "begin end", signature) == message


WORDS = [
    ";", "end", "if", "loop", "begin", ":", "'", "$$", "/*", "(", ")", "undo", "run", "wait", "for",
    "each", "in", "into", "case", "when", "then", "else", "exception", "return", "retry", "every",
    "<<", ">>", '"', "--", "declare", "sleep", "until", "lock", "ask", "of", "event", "matching",
    "timeout", "spend", "publish", "to", "key",
]  # fmt: skip


def spoilt(draw: random.Random) -> str:
    """Return one of the texts with some tokens lost, doubled, exchanged or added."""
    tokens = re.findall(
        r"\s+|\w+|'[^']*'|.", draw.choice([*WRONG, *(b for b, _, _ in RIGHT.values())])
    )
    for _ in range(draw.randint(1, 3)):
        first, second = draw.randrange(len(tokens)), draw.randrange(len(tokens))
        match draw.randrange(4):
            case 0:
                tokens[first] = ""
            case 1:
                tokens.insert(first, tokens[second])
            case 2:
                tokens[first], tokens[second] = tokens[second], tokens[first]
            case 3:
                tokens.insert(first, draw.choice(WORDS))
    return "".join(tokens)


def test_whatever_is_written_is_taken_or_refused_with_its_place(db):
    draw = random.Random(45)
    for _ in range(150):
        with db.transaction(force_rollback=True):
            body = spoilt(draw)
            said = flowkit.refusal(db, body)
            assert said == "nothing" or re.match(r"line \d+, column \d+: ", said), (body, said)
