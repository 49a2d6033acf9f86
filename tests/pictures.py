"""Pictures of the console's pages: ``python -m tests.pictures SERVER_DSN FOLDER``.

It fills a database with work of all sorts, opens each page in Chromium, light and dark, on a desk and
on a phone, and writes what it sees. Somebody looks at the pictures: no test can say that a page is
ugly. With --docs it makes those that stand in the documentation, ``docs/pictures``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent / "apps"))
sys.path.insert(0, str(Path(__file__).parent / "web"))

import psycopg
import servers
from chromium import Chromium, chromium
from graphkit import begin_graphs
from pgflow_cli.look.options import operator
from schedulekit import setting
from sqlkit import one
from test_console_forms import pay_back
from test_console_pages import (
    FLOWS,
    Order,
    agent,
    ask_first,
    await_payment,
    checkout,
    long,
    pay,
    ship,
)
from test_web_command import console

from pgflow import App, AsyncApp, step, workflow
from pgflow.authority import Pool
from pgflow.declare.durable import declared

LOOKS = ((1280, False), (1280, True), (390, False), (390, True))
PAGES = (
    "/", "/overview", "/overview?range=24h", "/gates/answer?workflow=ask_first&name=approve-order",
    "/runs", "/run?key=order-1", "/run?key=pay-3", "/workflows", "/workflow?name=checkout",
    "/gates", "/effects", "/queues", "/workers", "/policy", "/sql", "/sql/page?page=/runs",
    "/obligations", "/budgets", "/schedules", "/schedule?name=nightly", "/outbox",
    "/relay?name=mailer", "/relay/order?name=mailer&verb=replay", "/health",
    "/run/compare?key=pay-again", "/filters?status=failed", "/run?key=long",
    "/run/order?key=invoice-1&verb=cancel", "/run/again?key=order-1", "/runs?status=waiting",
    "/run?key=dag", "/run?key=ended", "/run?key=sop", "/run?key=icm", "/budget?pool=models",
    "/worker?id={worker}", "/queue?name=default", "/gate?gate={gate}",
)  # fmt: skip
DOCS = Path(__file__).parent.parent / "docs"
PICTURES = {
    "console-triage": "/", "console-overview": "/overview", "console-run": "/run?key=order-1",
    "console-gate": "/gate?gate={gate}",
}  # fmt: skip
"""Pages of the pictures in the documentation, by the names of these, light and dark."""
SHADES = ("light", "dark")
RENAME = f"""
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {{
  const text = texts.currentNode;
  text.data = text.data.replaceAll({json.dumps(operator())}, "ann");
}}
"""
"""Calls whoever sits at this machine ann."""
DOCS_SIZE = (1280, 800)


A_DAY = """
insert into pgflow.rate (minute, queue, upto_run_id, started, completed, failed, queued, oldest_seconds, took)
select m.at, '', 1, m.n + 3, m.n, m.n / 40 * (m.i % 3), m.n / 2, m.n / 30.0,
  array_fill(0, array[20 + m.i % 7]) || array[m.n / 2, m.n / 3] || array_fill(0, array[m.i % 11]) || array[1]
from (
  select i, date_trunc('minute', now()) - i * interval '1 minute' as at,
    (60 + 50 * sin(i / 200.0) + 20 * sin(i / 7.0))::int as n
  from generate_series(1, 1439) i
) m on conflict (minute, queue) do nothing
"""
"""Counts of a day, as workers would have made them."""
GATE = "select gate from pgflow.gates where workflow = 'pay_back' limit 1"
WORKER = "select worker_id from pgflow.workers where not stopping order by worker_id desc limit 1"
_begun, _over = threading.Event(), threading.Event()


@step
def read_long() -> None:
    """Keeps a worker busy while its page is looked at."""
    _begun.set()
    _over.wait(600)


@workflow
def held() -> None:
    """A run that a worker holds."""
    read_long()


async def work(dsn: str, folder: Path) -> None:
    """Do some work of each sort."""
    app = AsyncApp(
        dsn, include=[*FLOWS, declared, pay_back], pools=[Pool("models", usd=10, per="1 day")]
    )
    async with app, app.worker():
        await begin_graphs(app, folder)
        for n in range(3):
            await app.start(agent.options(key=f"agent-{n}", pool="models"))
        for n in range(8):
            await app.start(checkout.options(key=f"order-{n}"), Order("boots", n, n == 3))
            await app.start(pay.options(key=f"pay-{n}", labels={"customer": "acme"}), 100 * n)
            await app.start(await_payment.options(key=f"invoice-{n}"), f"order-{n}")
        await app.start(long.options(key="long"), 40)
        for n in range(1, 10):
            await app.start(ask_first.options(key=f"ask-{n}"), Order("boots", 20 * n, True))
        await app.start(ship.options(key="ship-1"), "lost")
        await app.start(pay_back.options(key="refund-1"))
        await asyncio.sleep(3)
        await app.cancel("ended", why="not today")
        await app.fork("pay-1", "pay-again", at=0, input={"cents": 7}, effects="repeat")
        await asyncio.sleep(1)


def show(browser: Chromium, url: str, folder: Path, only: str, found: dict[str, str]) -> None:
    """Make a picture of each page in each look."""
    for width, is_dark in LOOKS:
        browser.look(width, 900, dark=is_dark)
        for path in PAGES:
            if any(one in path for one in only.split(",")):
                browser.open(url + path.format(**found))
                plain = path.strip("/").replace("/", "-").replace("?", "-") or "home"
                browser.picture(folder / f"{plain}-{width}-{SHADES[is_dark]}.png")


def show_docs(browser: Chromium, url: str, folder: Path, only: str, found: dict[str, str]) -> None:
    """Make the pictures of the documentation."""
    for is_dark in (False, True):
        browser.look(*DOCS_SIZE, dark=is_dark)
        for name, path in PICTURES.items():
            if any(one in path for one in only.split(",")):
                browser.open(url + path.format(**found))
                if name == "console-gate":
                    browser.unfold("Edit, then approve")
                    browser.ask("document.querySelector('.edit').scrollIntoView()")
                browser.ask(RENAME)
                to = folder / f"{name}-{SHADES[is_dark]}.webp"
                browser.picture(to, whole=False, format="webp", quality=80)


def main() -> int:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dsn", help="of a server; a superuser's")
    parser.add_argument("folder", type=Path, nargs="?", default=DOCS / "pictures")
    parser.add_argument("--docs", action="store_true", help="those of the documentation")
    parser.add_argument(
        "--only", default="", help="only pages whose address has one of these in it: /runs,gates"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    name = servers.create_database(options.dsn)
    dsn = servers.dsn_of(options.dsn, name)
    try:
        servers.install_schema(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            rules = [{"name": "refund", "amount": "$.cents", "above": 1000, "needs": "gate"}]
            conn.execute("select pgflow.set_policy(%s, 'limits')", (json.dumps(rules),))
            setting(conn, "nightly")
            conn.execute(A_DAY)
            one(conn, "select pgflow.declare_relay('mailer', array['orders'], 'https://mail')")
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(work(dsn, Path(folder)))
        with (
            App(dsn, include=[*FLOWS, held]) as app,
            app.worker(),
            console(dsn) as (url, _),
            chromium() as browser,
            psycopg.connect(dsn, autocommit=True) as conn,
        ):
            browser.open(url.link)
            run = app.start(held.options(key="held"))
            _begun.wait(30)
            found = {"worker": str(one(conn, WORKER)), "gate": quote(one(conn, GATE))}
            (show_docs if options.docs else show)(browser, url, options.folder, options.only, found)
            _over.set()
            run.result()
            return 1 if browser.complaints else 0
    finally:
        servers.drop_database(options.dsn, name)


if __name__ == "__main__":
    sys.exit(main())
