"""``pgflow icm init``: what it writes says the same as the prose did, and the prose stays as it
was, byte for byte.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgflow.declare import icm
from pgflow.declare.icm.writing import without_places
from tests.kits.icmkit import CONTRACT, CORPUS, workspace

WORKSPACES = [path.relative_to(CORPUS).as_posix() for path in icm.find_workspaces(CORPUS)]


@pytest.fixture
def published(tmp_path, request):
    """A copy of a published workspace."""
    return Path(shutil.copytree(CORPUS / request.param, tmp_path / Path(request.param).name))


def contents(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def graph(root: Path):
    verdict = icm.read_workspace(root)
    assert verdict.errors == ()
    return verdict.graph


@pytest.mark.parametrize("published", WORKSPACES, indirect=True)
def test_what_is_written_compiles_to_the_same_graph(published):
    before = graph(published)
    plan = icm.write_missing(published)
    found = [file.path for file in plan.files]
    assert found == ["workflow.yaml", *(f"stages/{node.id}/CONTEXT.md" for node in before.nodes)]
    after = graph(published)
    assert without_places(after) == without_places(before)
    assert after.files[0] == "workflow.yaml"
    assert after.nodes[0].reads[0].position.line > before.nodes[0].reads[0].position.line


@pytest.mark.parametrize("published", WORKSPACES, indirect=True)
def test_the_prose_stays_as_it_was(published):
    before = contents(published)
    icm.write_missing(published)
    after = contents(published)
    assert after.keys() - before.keys() == {"workflow.yaml"}
    for path, content in before.items():
        if path.startswith("stages/") and path.count("/") == 2 and path.endswith("CONTEXT.md"):
            assert after[path] != content
            assert after[path].startswith(b"---\n")
        assert after[path].endswith(content)


@pytest.mark.parametrize("published", WORKSPACES, indirect=True)
def test_a_second_call_writes_nothing(published):
    icm.write_missing(published)
    before = {path: path.stat().st_mtime_ns for path in published.rglob("*")}
    assert icm.write_missing(published).files == ()
    assert {path: path.stat().st_mtime_ns for path in published.rglob("*")} == before


@pytest.mark.parametrize("published", WORKSPACES[:1], indirect=True)
def test_a_plan_says_what_would_be_written_and_writes_nothing(published):
    before = contents(published)
    plan = icm.plan_missing(published)
    assert contents(published) == before
    assert [file.exists for file in plan.files] == [False] + [True] * (len(plan.files) - 1)
    icm.write_missing(published)
    assert {file.path: file.content for file in plan.files}.items() <= contents(published).items()


def test_what_is_written_reads_like_the_published_specimen(tmp_path):
    root = workspace(
        tmp_path / "made",
        {
            "01-a": CONTRACT,
            "02-b": CONTRACT.replace("references/rules.md", "../01-a/output/result.md"),
        },
    )
    icm.write_missing(root)
    assert (root / "workflow.yaml").read_text() == dedent("""
        name: made
        version: 1
        state:
          result: {type: file, location: stages/01-a/output/result.md, written_by: 01-a}
          result_02: {type: file, location: stages/02-b/output/result.md, written_by: 02-b}
        stages:
          - {id: 01-a, next: 02-b, reads: [], writes: [result]}
          - {id: 02-b, next: END, reads: [result], writes: [result_02]}
    """).lstrip("\n")
    assert (
        (root / "stages/02-b/CONTEXT.md")
        .read_text()
        .startswith("---\nstage_id: 02-b\nreads: [result]\nwrites: [result_02]\n---\n\n# A stage\n")
    )


def test_frontmatter_says_what_workflow_yaml_declares(tmp_path):
    flow = """
        name: declared
        state:
          result: { type: file, location: stages/01-a/output/result.md, written_by: 01-a }
          go: { type: signal, schema: { id: string } }
        stages:
          - id: 01-a
            writes: [result]
            reads: [go]
            gate: explicit_request
            interrupt_before: true
            timeout: 90s
            retry: { max_attempts: 2, delay: 1s, on_error: all }
            side_effects: [{ system: email, idempotency_key: go.id, compensation: undo }]
            compensations: { undo: "Say: it was wrong." }
    """
    root = workspace(tmp_path, {"01-a": CONTRACT}, flow)
    before = graph(root)
    plan = icm.write_missing(root)
    assert [file.path for file in plan.files] == ["stages/01-a/CONTEXT.md"]
    verdict = icm.read_workspace(root)
    assert verdict.problems == ()
    assert without_places(verdict.graph) == without_places(before)
    assert (root / "stages/01-a/CONTEXT.md").read_text().split("---")[1] == dedent("""
        stage_id: 01-a
        reads: [go]
        writes: [result]
        gate: explicit_request
        interrupt_before: true
        side_effects:
          - system: email
            idempotency_key: go.id
            compensation: undo
        compensations:
          undo: 'Say: it was wrong.'
        retry:
          max_attempts: 2
          delay_ms: 1000
          on_error: all
        timeout: 90000ms
    """)


@pytest.mark.parametrize(
    "odd",
    ["\u2028", "\u2029", "\x85", "\ufeff", "\x7f", "\U0001f600", "'", '"', "#", ": ", " #", "  "],
)
def test_odd_characters_in_paths_survive(tmp_path, odd):
    root = workspace(
        tmp_path, {"01-a": CONTRACT.replace("output/result.md", f"output/[re{odd}sult].md")}
    )
    before = graph(root)
    assert before.artifacts[0].location == f"stages/01-a/output/[re{odd}sult].md"
    assert len(icm.write_missing(root).files) == 2
    assert without_places(graph(root)) == without_places(before)


def test_a_path_that_ends_in_a_colon_survives(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT.replace("output/result.md", "output/:")})
    before = graph(root)
    assert len(icm.write_missing(root).files) == 2
    assert without_places(graph(root)) == without_places(before)


@pytest.mark.parametrize("said", [
    "timeout: 365d", "timeout: 1.0004", "retry: { max_attempts: 1, delay: 90d }", "retry: 2",
    "compensations: [undo]",
])  # fmt: skip
def test_what_is_declared_in_any_form_is_written_with_the_same_meaning(tmp_path, said):
    flow = f"name: a\nstages:\n  - id: 01-a\n    {said}\n    description: 'two: \\ # words'\n"
    root = workspace(tmp_path, {"01-a": CONTRACT}, flow)
    before = graph(root)
    assert [file.path for file in icm.write_missing(root).files] == ["stages/01-a/CONTEXT.md"]
    assert without_places(graph(root)) == without_places(before)


def test_frontmatter_that_is_there_is_left_alone(tmp_path):
    root = workspace(
        tmp_path, {"01-a": "---\ntimeout: 5m\n---\n" + dedent(CONTRACT), "02-b": CONTRACT}
    )
    found = [file.path for file in icm.write_missing(root).files]
    assert found == ["workflow.yaml", "stages/02-b/CONTEXT.md"]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ending", ["", "\n", "\n\n\n"])
def test_byte_order_marks_line_ends_and_missing_newlines_are_kept(tmp_path, newline, mark, ending):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    file = root / "stages/01-a/CONTEXT.md"
    prose = (file.read_text().rstrip("\n") + ending).replace("\n", newline).encode()
    file.write_bytes(mark + prose)
    before = graph(root)
    icm.write_missing(root)
    written = file.read_bytes()
    assert written.startswith(mark + f"---{newline}stage_id: 01-a{newline}".encode())
    assert written.endswith(prose)
    assert written.count(b"\xef\xbb\xbf") == (1 if mark else 0)
    assert (b"\r" in written.removesuffix(prose)) == (newline == "\r\n")
    assert without_places(graph(root)) == without_places(before)
    assert icm.write_missing(root).files == ()


def test_the_mode_of_a_file_is_kept(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    file = root / "stages/01-a/CONTEXT.md"
    file.chmod(0o640)
    icm.write_missing(root)
    assert file.stat().st_mode & 0o777 == 0o640


def test_nothing_is_left_behind_when_writing_fails(tmp_path, monkeypatch):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    before = contents(root)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        icm.write_missing(root)
    assert contents(root) == before


def test_a_workspace_with_errors_is_not_written_to(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT, "01-b": CONTRACT})
    before = contents(root)
    plan = icm.write_missing(root)
    assert plan.files == ()
    found = [problem.message for problem in plan.verdict.errors]
    assert found == ["stages/01-b/CONTEXT.md: Duplicate stage number: 01"]
    assert contents(root) == before


def test_a_workspace_whose_graph_would_not_stay_the_same_is_not_written_to(tmp_path, monkeypatch):
    root = workspace(tmp_path, {"01-a": CONTRACT})
    before = contents(root)
    monkeypatch.setattr("pgflow.declare.icm.writing._flow", lambda _node: {"reads": ["result"]})
    plan = icm.write_missing(root)
    assert plan.files == ()
    found = [p.message for p in plan.verdict.errors]
    assert found == ["Nothing can be written for this workspace: the graph would not be the same"]
    assert contents(root) == before


WORDS = st.text(st.sampled_from("abc #:'\"[]{},&*!|>%@`-\\?~é"), max_size=12)


@pytest.mark.full
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    labels=st.lists(WORDS, min_size=1, max_size=4),
    names=st.lists(
        st.text(st.sampled_from("abc-_.[]{}#: '\"&*!é\u2028\x85"), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    ),
    name=st.text(st.sampled_from("ab:#&*!'\"{}[] -é"), max_size=8),
)
def test_whatever_authors_call_their_files_the_graph_stays_the_same(
    tmp_path_factory, labels, names, name
):
    rows = "".join(
        f"| {label.replace('|', '/').replace(chr(92), '/')} | `output/{file}` | F |\n"
        for label, file in zip(labels, names, strict=False)
    )
    contract = f"# {name}\n\n## Outputs\n\n| Artifact | Location | Format |\n|---|---|---|\n{rows}"
    root = workspace(
        tmp_path_factory.mktemp("made") / f"w{name}".replace("/", ""),
        {"01-a": contract, "02-b": contract},
    )
    verdict = icm.read_workspace(root)
    plan = icm.write_missing(root)
    assert plan.verdict == verdict
    if verdict.ok:
        assert without_places(graph(root)) == without_places(verdict.graph)
        assert icm.write_missing(root).files == ()
