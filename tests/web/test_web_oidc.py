"""``pgflow web --oidc``: a provider says who may come in, and no secret stands in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import HANG_SECONDS

pytest.importorskip("authlib", reason="needs authlib, which the extra test has")
pytest.importorskip("uvicorn", reason="needs uvicorn, which the extra test has")

import httpx
from clikit import pgflow
from oidckit import CLIENT, SECRET, provider
from pgflow_cli.look.failures import Mistake
from pgflow_cli.ops.web import CLIENT_SECRET, WEB_SECRET, read_oidc
from test_web_command import console

from pgflow.embedded._supervisor import find_free_port

GOOD = {
    "issuer": '"https://id.example.org"', "client_id": '"pgflow"',
    "address": '"https://Ops.Example.org"', "roles": '{staff = ["view"]}',
}  # fmt: skip


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLIENT_SECRET, SECRET)
    monkeypatch.setenv(WEB_SECRET, "x" * 32)


def written(folder: Path, **said: str | None) -> Path:
    """A file that says this, beside or in place of what a good one says."""
    path = folder / "oidc.toml"
    lines = {**GOOD, **said}
    path.write_text("".join(f"{name} = {text}\n" for name, text in lines.items() if text))
    return path


@pytest.mark.full
def test_whom_the_provider_names_comes_in_with_the_roles_of_the_file(dsn, tmp_path):
    port = find_free_port()
    address = f"http://127.0.0.1:{port}"
    with provider() as known:
        known.claims = {"roles": ["staff"]}
        file = written(
            tmp_path, issuer=f'"{known.issuer}"', client_id=f'"{CLIENT}"', address=f'"{address}"'
        )
        with (
            console(dsn, "--port", str(port), "--oidc", str(file)) as (url, served),
            httpx.Client(base_url=url) as browser,
        ):
            assert browser.get("/runs").status_code == 303
            assert browser.get("/", headers={"host": "evil.example"}).status_code == 400
            begun = browser.get("/login/go", params={"next": "/runs"})
            ended = browser.get(known.let_in(begun.headers["location"]))
            assert ended.status_code in (200, 303), ended.text
            page = browser.get("/runs")
            assert (page.status_code, "ann@example.org" in page.text) == (200, True)
            asked = browser.get("/run/order", params={"key": "x", "verb": "cancel"})
            assert asked.status_code == 403
            known.claims = {"roles": ["nobody"]}
            with httpx.Client(base_url=url) as other:
                begun = other.get("/login/go", params={"next": "/runs"})
                assert other.get(known.let_in(begun.headers["location"])).status_code == 401
            served.terminate()
            said = served.communicate(timeout=HANG_SECONDS)[1]
            assert SECRET not in said
            assert served.returncode == 0


def test_the_console_is_known_by_its_address_and_on_this_machine(tmp_path):
    login, hosts = read_oidc(written(tmp_path))
    assert (login.host, hosts[-1]) == ("id.example.org", "ops.example.org")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"roles": "["}, "is not TOML"),
        ({"client_id": None}, "client_id is missing"),
        ({"client_secret": '"hush"'}, f"this file must not hold a secret: set {CLIENT_SECRET}"),
        ({"issuers": '"x"'}, "unknown key issuers; use address, client_id"),
        ({"client_id": "7"}, "client_id is a text"),
        ({"roles": '["view"]'}, "roles is a table of lists"),
        ({"roles": '{ops = "view"}'}, "roles is a table of lists"),
        ({"roles": '{ops = ["root"]}'}, "role 'root'"),
        ({"issuer": '"http://id.example.org"'}, "the issuer is an address of https"),
        ({"address": '"https://example.org/ops"'}, "at the root of its host"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, said, says):
    with pytest.raises(Mistake) as refused:
        read_oidc(written(tmp_path, **said))
    text = str(refused.value)
    assert says in text
    assert str(tmp_path) in text
    assert "hush" not in text
    assert "\n" not in text


def test_a_short_secret_and_a_file_that_is_not_there_are_refused(tmp_path, monkeypatch):
    with pytest.raises(Mistake, match="No such file"):
        read_oidc(tmp_path / "none.toml")
    monkeypatch.setenv(WEB_SECRET, "short")
    with pytest.raises(Mistake, match=f"{WEB_SECRET} has at least 32 bytes"):
        read_oidc(written(tmp_path))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tokens", "t.toml"], "exclude each other"),
        (["--read-only"], "the file of --oidc has roles"),
    ],
)
def test_options_that_say_two_things_are_refused(dsn, tmp_path, words, says):
    answer = pgflow(dsn, "web", "--oidc", str(written(tmp_path)), *words)
    assert (answer.code, says in answer.err) == (2, True), answer.err
