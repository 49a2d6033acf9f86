"""Places are found in any source, each change can be read, and names of places stay."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from . import judge, places, recorder, sql_operators, traces

PYTHON = '''
"""A module."""

LIMIT = 3

class Box:
    """A box."""

    def take(self, many: int, *, at_once: bool = False) -> bool:
        """Take so many."""
        log.info("taking %s", many)
        if many > LIMIT and not at_once:
            raise ValueError(f"{many} are too many")
        with self._lock:
            self._taken += many
            self._tell(many, by=self.name)
        for one in self._waiting:
            one.wake()
        return self._taken < 10

    def __repr__(self) -> str:
        return "Box" + str(self._taken + 1)


def find(key):
    return run("select id from pgflow.run where key = %s and tenant = %s order by id")
'''

SQL = """
create or replace function pgflow.take_(ids bigint[], t timestamptz)
returns int
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  found_ids bigint[];
  began timestamptz := pgflow.now_();
begin
  if ids is null or cardinality(ids) > 100 then
    raise exception using errcode = 'PF004', message = 'too many';
  end if;
  found_ids := array(
    select l.run_id from pgflow.lease l where l.run_id = any(ids) and not l.is_gone
    order by l.run_id desc limit 5 for update skip locked
  );
  insert into pgflow.nudge (chain_id) select unnest(found_ids);
  delete from pgflow.lease where run_id = any(found_ids) and due_at between t and t + interval '1 s';
  return coalesce(cardinality(found_ids), 0);
end
$$;
comment on function pgflow.take_(bigint[], timestamptz) is 'Takes leases and not more than 5';

create or replace function pgflow.hash_(a bytea)
returns bytea
language sql
return sha256(a || '\\x01') || 'x';
comment on function pgflow.hash_(bytea) is 'A hash';
"""


def of(text: str, path: str) -> dict[str, places.Mutant]:
    return {mutant.id.partition("::")[2]: mutant for mutant in places.find_in(path, text)}


def changed(mutant: places.Mutant, text: str) -> str:
    """The lines that a mutant adds, without their indents."""
    lines = mutant.diff(text).splitlines()[2:]
    return " ".join(line[1:].strip() for line in lines if line.startswith("+"))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Box.take::condition true#1", "if True:"),
        ("Box.take::boundary#1", "if many >= LIMIT and not at_once:"),
        ("Box.take::term dropped#2", "if many > LIMIT and True:"),
        ("Box.take::not dropped#1", "if many > LIMIT and (at_once):"),
        ("Box.take::statement dropped#1", "pass"),
        ("Box.take::context dropped#1", "if True:"),
        ("Box.take::argument dropped#1", "self._tell(many)"),
        ("Box.take::loop dropped#1", "for one in ():"),
        ("Box.take::return negated#1", "return not (self._taken < 10)"),
        ("<module>::constant#1", "LIMIT = 4"),
        (
            "find::order dropped#1",
            'return run("select id from pgflow.run where key = %s and tenant = %s ")',
        ),
    ],
)
def test_a_place_of_python_is_found(name: str, line: str) -> None:
    assert changed(of(PYTHON, "pgflow/box.py")[name], PYTHON) == line


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("take_::condition false#1", "if false then"),
        ("take_::term dropped#2", "if ids is null or false then"),
        ("take_::value dropped#1", "began timestamptz ;"),
        ("take_::skip locked dropped#1", "order by l.run_id desc limit 5 for update"),
        ("take_::order dropped#1", "limit 5 for update skip locked"),
        ("take_::lock dropped#1", "order by l.run_id desc limit 5"),
        ("take_::statement dropped#1", "null;"),
        ("take_::coalesce dropped#1", "return coalesce(cardinality(found_ids));"),
        ("hash_::constant#1", "return sha256(a || '\\x01') || 'xx';"),
    ],
)
def test_a_place_of_sql_is_found(name: str, line: str) -> None:
    assert changed(of(SQL, "sql/take.sql")[name], SQL) == line


def test_a_sync_twin_is_broken_with_the_async_file_that_it_is_made_of() -> None:
    path = "pgflow/_client/_async/maintenance.py"
    twin = path.replace("_async", "_sync")
    found = {*places.source_files()}
    assert path in found and twin not in found
    mutant = places.find_in(path, (places.REPOSITORY / path).read_text())[0]
    sound = {name: (places.REPOSITORY / name).read_text() for name in (path, twin)}
    broken = judge.texts_of(mutant)
    assert broken.keys() == sound.keys()
    lines = [{*broken[name].splitlines()} - {*sound[name].splitlines()} for name in (path, twin)]
    assert lines[0] and {line.replace("await ", "") for line in lines[0]} == lines[1]


def test_every_change_of_python_can_be_read() -> None:
    for mutant in places.find_in("pgflow/box.py", PYTHON):
        ast.parse(mutant.apply(PYTHON))


def test_a_view_is_replaced_where_its_file_creates_it() -> None:
    text = "drop view if exists pgflow.v;\ncreate view pgflow.v as\nselect 1 as n;\n"
    replaced = sql_operators.statement_of(text, "v")
    assert replaced == "create or replace view pgflow.v as\nselect 1 as n;"


def test_what_is_only_shown_is_left_alone() -> None:
    found = of(PYTHON, "pgflow/box.py")
    assert not any("__repr__" in name for name in found)
    changes = [changed(mutant, PYTHON) for mutant in found.values()]
    assert not any("log.info" in line or "too many" in line for line in changes)
    assert not any("comment on" in changed(m, SQL) for m in of(SQL, "sql/take.sql").values())


def test_a_place_keeps_its_name_when_another_function_changes() -> None:
    more = PYTHON.replace(
        "def find(key):\n", "def find(key):\n    if not key:\n        return None\n"
    )
    before, after = of(PYTHON, "pgflow/box.py"), of(more, "pgflow/box.py")
    taken = [name for name in before if name.startswith("Box.take")]
    assert [changed(before[name], PYTHON) for name in taken] == [
        changed(after[name], more) for name in taken
    ]


def test_a_draw_is_the_same_for_a_seed_and_takes_rooms_and_their_functions_in_turn() -> None:
    found = places.find_in("pgflow/box.py", PYTHON) + places.find_in("sql/take.sql", SQL)
    drawn = places.draw(found, 7, 4)
    assert drawn == places.draw(found, 7, 4)
    assert sorted(mutant.room for mutant in drawn) == ["pgflow", "pgflow", "sql", "sql"]
    assert len({(mutant.path, mutant.function) for mutant in drawn}) == len(drawn)
    everything = places.draw(found, 7, 10_000)
    assert sorted(mutant.id for mutant in everything) == sorted(mutant.id for mutant in found)


def test_tests_that_say_what_stands_at_the_place_come_first(tmp_path, monkeypatch) -> None:
    text = "def test_a():\n    assert open_door()\n\ndef test_b():\n    assert Box().take(4, at_once=True)\n"
    (tmp_path / "pgflow").mkdir()
    (tmp_path / "pgflow" / "box.py").write_text(PYTHON)
    (tmp_path / "test_box.py").write_text(text)
    monkeypatch.setattr(traces, "REPOSITORY", tmp_path)
    key = "pgflow/box.py::Box.take"
    heard = [
        traces.Heard(f"test_box.py::{name}", "default", seconds, passed=True, entered={key})
        for name, seconds in (("test_a", 0.1), ("test_b", 0.2))
    ]
    mutant = of(PYTHON, "pgflow/box.py")["Box.take::boundary#1"]
    reaching = traces.Trace(heard).reaching(mutant, "default")
    assert [test.name for test in reaching] == ["test_box.py::test_b", "test_box.py::test_a"]


def test_a_record_says_what_each_test_entered(tmp_path) -> None:
    folder = tmp_path / "default" / "tests.x"
    folder.mkdir(parents=True)
    record = recorder.Recorder(str(folder))
    record.write("test_x.py::test_a", ["sql::wake", "pgflow/a.py::f"], seconds=0.5, passed=True)
    record.write("test_x.py::test_b", ["pgflow/a.py::f"], seconds=0.1, passed=False)
    heard = traces.read(tmp_path).tests
    assert heard["test_x.py::test_a"].entered == {"sql::wake", "pgflow/a.py::f"}
    assert heard["test_x.py::test_b"].entered == {"pgflow/a.py::f"}
    assert not heard["test_x.py::test_b"].passed


def test_a_record_goes_on_where_it_was_left(tmp_path, monkeypatch) -> None:
    codes = {"tests/a": [0], "tests/b": [1, 3], "tests/c": [2, 0], "tests/d": [5]}

    def play(made, tier, word, environment) -> int:
        made.mkdir(parents=True)
        record = recorder.Recorder(str(made))
        record.write(f"{word}/test_x.py::test_x", ["sql::wake"], seconds=0.5, passed=True)
        return codes[word].pop(0)

    monkeypatch.setattr(traces, "on_template", lambda dsn: {})
    monkeypatch.setattr(traces, "rooms_of_tests", lambda: list(codes))
    monkeypatch.setattr(traces, "_play", play)
    assert traces.record(tmp_path, "default", (), "") == 2
    monkeypatch.setattr(traces, "REPOSITORY", tmp_path)
    for room in codes:
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "test_x.py").write_text(
            "def test_y(): pass\n@mark.full\ndef test_z(): pass"
        )
    found = traces.read(tmp_path, [*codes])
    assert {test.file[6] for test in found.tests.values() if test.entered} == {*"abd"}
    wake = of(SQL.replace("take_", "wake"), "sql/take.sql")["wake::term dropped#2"]
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "take.sql").write_text(SQL)
    reaching = {test.name for test in found.reaching(wake, "default")}
    assert reaching == {
        *(f"tests/{room}/test_x.py::test_x" for room in "abd"),
        "tests/c/test_x.py::test_y",
    }
    assert traces.record(tmp_path, "default", (), "") == 0
    assert traces.record(tmp_path, "default", ["tests/b"], "") == 3
    assert {test.file[6] for test in traces.read(tmp_path).tests.values()} == {*"abcd"}


@pytest.mark.full
def test_a_process_that_a_test_starts_and_one_that_it_forks_record_for_it(tmp_path) -> None:
    made = tmp_path / "default" / "tests.x"
    made.mkdir(parents=True)
    folder = str(made)
    (tmp_path / "sitecustomize.py").write_text(recorder.INHERITED.format(path=recorder.__file__))
    code = """import os; from pgflow._model.durations import duration, in_short
found = duration(1, "a wait")
if os.fork() == 0:
    in_short(found); os.kill(os.getpid(), 9)
os.wait()"""
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        recorder.FOLDER: folder,
        "PYTEST_CURRENT_TEST": "test_x.py::test_a (call)",
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    (heard,) = traces.read(tmp_path).tests.values()
    assert heard.name == "test_x.py::test_a"
    path = "pgflow/_model/durations.py"
    assert heard.entered >= {f"{path}::duration", f"{path}::in_short"}
