"""The tests that pydantic-ai has for DBOS and for Temporal, each with its counterpart here.

`durable_suite.tsv` has a line for each of them: the suite, the test, and a test or look of this
room, or a code of `REASONS`.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

REASONS = {
    "wrapper": "of the wrapped agents and models that capabilities have replaced; pgflow has none",
    "sandbox": "of Temporal's sandbox and its converters of payloads",
    "serialised": "of values that must be sent to another process; a body runs in the worker's",
    "registered": "of what is registered before a worker starts; a step here is made as it is called",
    "recorded": "of histories that earlier releases of these two have recorded",
    "inherited": "of parts of the framework's own base class, looked at from inside",
    "options": "of options that only these two have; retries and times are pgflow's",
    "heartbeat": "of Temporal's heartbeats; a worker here has one for all its steps",
    "realtime": "of realtime sessions outside of workflows, and of the requests that prepare them",
    "logfire": "of a plug-in for Temporal's client",
    "in-process": "of a tool that is gone before its call; the function is at hand here",
}
FILES = {"kill": "test_pydantic_ai.py", "traces": "test_adapter_traces.py"}
ROOM = Path(__file__).parent
ROWS = [line.split("\t") for line in (ROOM / "durable_suite.tsv").read_text().splitlines()]


def test_each_test_of_the_framework_has_a_counterpart_or_a_reason() -> None:
    assert Counter(suite for suite, _, _ in ROWS) == {"dbos": 129, "temporal": 252}
    assert len({(suite, test) for suite, test, _ in ROWS}) == len(ROWS)
    for suite, test, fate in ROWS:
        file, colon, name = fate.partition(":")
        if not colon:
            assert fate in REASONS, f"{suite} {test}: {fate}"
            continue
        text = (ROOM / FILES.get(file, f"test_pydantic_ai_{file}.py")).read_text()
        assert re.search(rf"def {name}\(", text), f"{suite} {test}: there is no {fate}"


def test_the_page_has_the_figures() -> None:
    fates = Counter("counterpart" if ":" in fate else fate for *_, fate in ROWS)
    page = (ROOM.parents[1] / "docs" / "how-to" / "pydantic-ai.md").read_text()
    reasons = len(ROWS) - fates["counterpart"]
    said = (
        f"{fates['counterpart']} have a counterpart here, {reasons} a reason why they do not apply"
    )
    assert said in page
