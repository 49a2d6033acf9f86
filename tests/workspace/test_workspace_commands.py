"""Commands, and where they reach."""

from __future__ import annotations

import pytest

from pgflow.workspace import classify


@pytest.mark.parametrize(
    ("command", "reach"),
    [
        ("ls -la", "reads"),
        ("git status", "reads"),
        ("git -C /x log -1", "reads"),
        ("cat a | grep b | wc -l", "reads"),
        ("/usr/bin/git diff", "reads"),
        ("find . -name '*.py'", "reads"),
        ("curl https://example.org/x", "reads"),
        ("gh pr view 7", "reads"),
        ("echo 'git push'", "reads"),
        ("find . -delete", "files"),
        ("echo x > a", "files"),
        ("pytest -q && ruff check .", "files"),
        ("npm test", "files"),
        ("LANG=C sed -i s/a/b/ x", "files"),
        ("git commit -m 'x'", "repository"),
        ("git add . && git stash", "repository"),
        ("git push", "outside"),
        ("git -c a=b push origin main", "outside"),
        ("git add . && git commit -m x; git push origin HEAD", "outside"),
        ("env GIT_SSH=x git push", "outside"),
        ("timeout 10 git push", "outside"),
        ("bash -c 'git push'", "outside"),
        ("npm publish --tag next", "outside"),
        ("cargo publish", "outside"),
        ("twine upload dist/*", "outside"),
        ("gh pr comment 7 --body hello", "outside"),
        ("gh pr merge 7", "outside"),
        ("curl -XPOST https://example.org", "outside"),
        ("curl --data=x https://example.org", "outside"),
        ("curl -d@file https://example.org", "outside"),
        ("kubectl apply -f x", "outside"),
        ("docker push image", "outside"),
        ("terraform apply", "outside"),
        ("ssh host ls", "outside"),
        ("echo $(date)", "unknown"),
        ("echo $(git push)", "outside"),
        ("./deploy.sh", "unknown"),
        ("python x.py", "unknown"),
        ("bash deploy.sh", "unknown"),
        ("find . -exec rm {} ;", "unknown"),
        ("git frobnicate", "outside"),
        ("echo 'unclosed", "unknown"),
        ("sudo rm -rf /", "unknown"),
    ],
)
def test_the_worst_part_of_a_command_counts(command: str, reach: str) -> None:
    found = classify(command)
    assert found.reach == reach
    assert found.needs_leave == (reach in ("unknown", "outside"))


def test_words_of_one_program_are_not_read_as_a_line() -> None:
    assert classify(["echo", "x; git push"]).reach == "reads"
    assert classify(["git", "push"]).reach == "outside"
    assert classify([]).reach == "unknown"


@pytest.mark.full
def test_an_app_says_more_about_its_own_programs() -> None:
    rules = {"make": "files", "make deploy": "outside", "pytest": "unknown"}
    assert classify("make test", rules).reach == "files"  # type: ignore[arg-type]
    assert classify("make deploy", rules).reach == "outside"  # type: ignore[arg-type]
    assert classify("pytest", rules).rule == "pytest"  # type: ignore[arg-type]
