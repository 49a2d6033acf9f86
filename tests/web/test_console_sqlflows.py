"""Workflows in SQL in the console: a chart of what one does, and runs whose steps have ended."""

from __future__ import annotations

from test_console_pages import ANN, seen_in
from webkit import Browser, is_harmless

from pgflow import inspect
from pgflow.console.flowchart import draw_flowchart

FULFIL = """
begin
  reserve: perform 1;
  undo reserve: perform 2;
  wait for paid timeout '3 days';
  if timed_out then
    return 'late';
  end if;
  ship: perform 3;
end
"""


def test_a_chart_has_a_box_for_each_node_and_arrows_around_what_they_pass():
    chart = draw_flowchart(
        'flowchart TD\n  n0(["f(a int)"])\n  n1["a &quot;b&quot;"]\n  n2{"x"}\n  n3[["run y"]]\n'
        "  n0 --> n1\n  n1 --> n2\n  n2 -->|yes| n3\n  n2 -->|no| n1\n  n1 -.->|undo| n3"
    )
    assert [(box.title, box.shape) for box in chart.boxes] == [
        ("f(a int)", "wait"), ('a "b"', "step"), ("x", "choice"), ("run y", "child"),
    ]  # fmt: skip
    straight = [arrow for arrow in chart.arrows if "H" not in arrow.path]
    assert [arrow.label for arrow in straight] == ["", "", "yes"]
    around = [arrow for arrow in chart.arrows if "H" in arrow.path]
    assert [(arrow.label, arrow.is_dashed) for arrow in around] == [("no", False), ("undo", True)]
    assert len({arrow.path for arrow in around}) == 2  # none lies on another


async def test_a_workflow_in_sql_is_drawn_and_its_steps_are_over_once_recorded(aflow, conn):
    conn.execute("select pgflow.create_workflow('fulfil(id int)', %s)", (FULFIL,))
    conn.execute("""select pgflow.start_run('fulfil', '{"id": 7}', key => 'order-7')""")
    conn.execute("select pgflow.deliver_signal('order-7', 'paid', '500')")
    conn.execute("call pgflow.work(until_idle => true)")
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/workflow", name="fulfil")
    assert is_harmless(page) == []
    seen_in(page, "What it does in SQL, version 1", "undo reserve", "wait for paid", "Its text")
    history = await inspect.ask_async(aflow.app, inspect.read_history("order-7"))
    assert [(entry.name, entry.status) for entry in history.entries] == [
        ("reserve", "completed"), ("paid", "received"), ("ship", "completed"),
    ]  # fmt: skip
