"""Effects and children of a part that is dropped: reused where the run asks for the same, or taken
back first.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from records import SOON, launch, result_of, run_row, settle
from servers import HANG_SECONDS
from sqlkit import Actor, begin, child, claim_one, commit, finish, flush, one, rows

import pgflow
from pgflow import Retries, RunFailed, RunStuck, Signal, read, workflow
from pgflow.effects import Absent, Accepted, Confirmed, StillUnknown, effect
from pgflow.errors import HasActed, WrongState

if TYPE_CHECKING:
    Conn = psycopg.Connection[Any]

QUICKLY = Retries(
    max_attempts=3, first_delay=timedelta(milliseconds=1), max_delay=timedelta(milliseconds=5)
)
go = Signal("go", str)


class World:
    """The outside: what is there, and every call that reached it, with its key."""

    there: list[str]
    calls: list[str]
    keys: list[str]
    trouble: dict[str, int]
    known: str
    prices: dict[str, int]


@pytest.fixture(autouse=True)
def world() -> None:
    World.there, World.calls, World.keys, World.trouble, World.known, World.prices = (
        [], [], [], {}, "there", {},
    )  # fmt: skip


def reach(act: str, item: str) -> None:
    World.calls.append(f"{act} {item}")
    World.keys.append(pgflow.idempotency_key())
    if act == "buy":
        World.there.append(item)
    elif item in World.there:
        World.there.remove(item)
    if World.trouble.get(f"{act} {item}", 0) > 0:
        World.trouble[f"{act} {item}"] -= 1
        raise ConnectionResetError(f"{act} {item}: no reply")


@effect(risk="compensable", settle_retries=QUICKLY)
async def buy(item: str, cents: int = 100) -> str:
    reach("buy", item)
    return f"{item} for {cents}"


@buy.settle
async def _(item: str, cents: int = 100) -> Confirmed[str] | Absent | StillUnknown:
    if World.known == "silent":
        return StillUnknown()
    return Confirmed(f"{item} for {cents}") if item in World.there else Absent()


@buy.compensate
async def give_back(bought: str, item: str, cents: int = 100) -> None:
    assert bought == f"{item} for {cents}"
    reach("return", item)


@effect(risk="compensable", settle_retries=QUICKLY)
def burn(item: str) -> str:
    reach("buy", item)
    return item


@effect(risk="compensable", settle_retries=QUICKLY)
async def lease(item: str) -> str | Accepted:
    reach("buy", item)
    return Accepted(f"contract of {item}")


@lease.compensate
async def end_lease(taken: str | Accepted, item: str) -> None:
    assert isinstance(taken, Accepted)
    assert taken.ref == f"contract of {item}"
    reach("return", item)


@read
async def is_too_dear() -> bool:
    return not World.prices


@workflow
async def shopping(items: list[str]) -> list[str]:
    made = [await buy(item, World.prices.get(item, 100)) for item in items]
    pgflow.set_state(made=made)
    return made


@workflow
async def mixed(item: str) -> list[str]:
    """One effect of each sort, then a wait: its run is parked with what it has done."""
    made = [await buy(f"{item} 1"), await burn.aio(f"{item} 2")]
    taken = await lease(f"{item} 3")
    made.append(taken.ref if isinstance(taken, Accepted) else taken)
    return [*made, await go.wait()]


@workflow
async def leasing() -> str:
    taken = await lease("car")
    return taken.ref if isinstance(taken, Accepted) else "at once"


@workflow
async def stages(n: int) -> str:
    """Two generations in one saga; it fails while prices are unknown."""
    async with pgflow.effects.saga():
        await buy(f"stage {n}")
        if n == 0:
            pgflow.continue_as_new(1)
        await buy("extra")
        if await is_too_dear():
            raise ValueError("too dear")
    return "done"


@workflow
async def doomed_lease() -> None:
    async with pgflow.effects.saga():
        await lease("car")
        await go.wait()
        raise ValueError("too dear")


def effects(conn: Conn, columns: str = "name, status", more: str = "") -> list[Any]:
    return rows(conn, f"select {columns} from pgflow.effects e {more} order by run_id, call")


def owed(conn: Conn) -> list[Any]:
    return rows(conn, "select name from pgflow.obligations order by name")


def sound(conn: Conn) -> None:
    assert rows(conn, "select invariant, detail from pgflow.check()") == []


@pytest.mark.full
def test_an_effect_is_done_once_and_its_result_handed_to_whoever_asks_for_the_same(flow, conn):
    run = launch(flow, shopping.options(key="k"), ["milk", "tea", "milk"])
    made = ["milk for 100", "tea for 100", "milk for 100"]
    assert run.result(SOON) == made
    calls, keys = list(World.calls), list(World.keys)
    for cut in (2, 0):
        flow.app.rewind("k", cut, effects="reuse")
        assert run.result(SOON) == made
        sound(conn)
    assert World.calls == calls
    first = one(conn, "select min(run_id) from pgflow.effects")
    assert effects(conn, "effect, status, attempts, origin", "where generation = 3") == [
        (key, "confirmed", 0, {"run_id": first, "seq": seq})
        for key, seq in zip(keys, (1, 3, 5), strict=True)
    ]


@pytest.mark.full
@pytest.mark.parametrize("cut", [0, 2])
def test_another_request_is_another_act_under_another_key(flow, conn, cut):
    run = launch(flow, shopping.options(key="k"), ["milk", "tea"])
    run.result(SOON)
    World.prices["tea"] = 90
    flow.app.rewind("k", cut, effects="reuse")
    assert run.result(SOON) == ["milk for 100", "tea for 90"]
    assert World.calls == ["buy milk", "buy tea", "buy tea"]
    root = one(conn, "select root from pgflow.run where key = 'k' and generation = 1")
    assert World.keys == [f"{root}/buy/1", f"{root}/buy/2", f"{root}~2/buy/2"]
    World.prices.clear()
    flow.app.rewind("k", cut, effects="reuse")
    assert run.result(SOON) == ["milk for 100", "tea for 100"]
    assert World.keys[3:] == [], "what was bought at first and not asked for since is still known"
    sound(conn)


@pytest.mark.full
def test_a_fork_is_handed_results_and_takes_none_of_them_back(flow, conn):
    @workflow
    async def doomed(items: list[str]) -> None:
        for item in items:
            await buy(item)
        raise ValueError("too dear")

    result_of(flow, shopping.options(key="k"), ["milk", "tea"], beside=[doomed])
    fork = flow.app.fork("k", at=2, effects="reuse")
    assert flow.app.get(fork, shopping).result(SOON) == ["milk for 100", "tea for 100"]
    assert World.calls == ["buy milk", "buy tea"]
    with pytest.raises(RunFailed):
        flow.start(doomed.options(key="d"), ["gin", "rum"]).result(SOON)
    assert World.calls[2:] == ["buy gin", "buy rum", "return rum", "return gin"]
    del World.calls[:]
    fork = flow.app.fork("d", at=2, effects="repeat")
    with pytest.raises(RunFailed):
        flow.app.get(fork, doomed).result(SOON)
    assert World.calls == ["buy rum", "return rum"], "the gin is the origin's to take back"
    sound(conn)


@pytest.mark.full
def test_what_was_taken_back_is_not_reused(flow):
    @workflow
    async def doomed(items: list[str]) -> list[str]:
        made = [await buy(item) for item in items]
        if await is_too_dear():
            raise ValueError("too dear")
        return made

    run = launch(flow, doomed.options(key="k"), ["gin"])
    with pytest.raises(RunFailed):
        run.result(SOON)
    World.prices["gin"] = 1
    flow.app.restart("k", effects="reuse")
    assert run.result(SOON) == ["gin for 100"]
    assert World.calls == ["buy gin", "return gin", "buy gin"]
    assert len(set(World.keys)) == 3


@pytest.mark.full
def test_an_acceptance_that_was_confirmed_is_reused(flow, conn):
    run = settle(flow, leasing.options(key="k"))
    with pytest.raises(
        WrongState,
        match="effect lease, intended at unit 1, is not closed, so its result cannot be reused",
    ):
        flow.app.restart("k", effects="reuse")
    flow.app.confirm_effect("contract of car")
    assert run.result(SOON) == "contract of car"
    flow.app.restart("k", effects="reuse")
    assert run.result(SOON) == "contract of car"
    assert World.calls == ["buy car"]
    assert effects(conn, "status, attempts") == [("confirmed", 1), ("confirmed", 0)]
    assert owed(conn) == []
    sound(conn)


@workflow
async def helper(item: str) -> str:
    return await buy(item)


@workflow
async def waiting(item: str) -> str:
    return f"{item} {await go.wait()}"


@workflow
async def family(items: list[str]) -> list[str]:
    made = [await pgflow.run_child(helper.options(key=f"child {item}"), item) for item in items]
    return [*made, await pgflow.run_child(helper, items[0])]


@workflow
async def patient(item: str) -> str:
    return await pgflow.run_child(waiting.options(key=f"child {item}"), item)


@pytest.mark.full
def test_a_child_that_has_completed_is_not_started_again(flow, conn):
    run = launch(flow, family.options(key="k"), ["milk", "tea"], beside=[helper])
    made = ["milk for 100", "tea for 100", "milk for 100"]
    assert run.result(SOON) == made
    for cut in (5, 2, 0):
        flow.app.rewind("k", cut, effects="reuse")
        assert run.result(SOON) == made
        sound(conn)
    fork = flow.app.fork("k", at=0, effects="reuse")
    assert flow.app.get(fork, family).result(SOON) == made
    assert len(World.calls) == 3
    assert flow.app.get("child tea", helper).result(SOON) == "tea for 100"
    flow.app.restart("k", effects="reuse", input={"items": ["gin", "tea"]})
    assert run.result(SOON) == ["gin for 100", "tea for 100", "gin for 100"]
    assert World.calls[3:] == ["buy gin", "buy gin"], "tea was bought before"
    sound(conn)


@pytest.mark.full
def test_a_child_that_goes_on_is_waited_for(flow, conn):
    run = settle(flow, patient.options(key="k"), "tea", beside=[waiting])
    assert flow.app.get("child tea", waiting).status() == "waiting"
    flow.app.restart("k", effects="reuse")
    flow.until_idle()
    sound(conn)
    assert run_row(conn, "child tea", "status, generation") == ("waiting", 1)
    flow.app.restart("k", effects="reuse")
    flow.app.send("child tea", go, "is ready")
    assert run.result(SOON) == "tea is ready"
    assert one(conn, "select count(*) from pgflow.runs where workflow = 'waiting'") == 1
    sound(conn)


@pytest.mark.full
def test_a_child_that_nobody_asks_for_again_ends_with_its_parent(flow, conn):
    @workflow
    async def fickle() -> str:
        return await pgflow.run_child(waiting, "tea") if await is_too_dear() else "alone"

    run = settle(flow, fickle.options(key="k"), beside=[waiting])
    World.prices["tea"] = 1
    flow.app.restart("k", effects="reuse")
    assert run.result(SOON) == "alone"
    flow.until_idle()
    assert rows(conn, "select status from pgflow.runs where workflow = 'waiting'") == ["cancelled"]
    sound(conn)


@pytest.mark.full
def test_a_child_is_asked_for_with_other_arguments_under_the_same_key(flow):
    @workflow
    async def one_child() -> str:
        return await pgflow.run_child(
            helper.options(key="child"), "milk" if await is_too_dear() else "tea"
        )

    run = launch(flow, one_child.options(key="k"), beside=[helper])
    assert run.result(SOON) == "milk for 100"
    World.prices["tea"] = 1
    flow.app.restart("k", effects="reuse")
    assert run.result(SOON) == "tea for 100"


def test_a_child_that_ends_while_its_parent_is_rewound_is_heard(conn, dsn):
    """Its worker commits its end before, or after, but not unheard."""
    parent = begin(conn, "parent", key="parent")
    commit(conn, flush(parent, children=[child(1, key="child")]))
    kid = claim_one(conn)
    commit(conn, flush(parent, child_calls=[1], park=True, idle=True))
    with Actor(dsn) as worker, Actor(dsn) as operator:
        worker.conn.execute("begin")
        finish(worker.conn, kid, output='"done"')
        rewound = operator.do(
            lambda its: one(
                its, "select run_id from pgflow.restart_run('parent', effects => 'reuse')"
            )
        )
        operator.until_waiting(conn)
        worker.conn.execute("commit")
        heir = rewound.result()
    assert [
        payload
        for (payload,) in conn.execute(
            "select payload->>'output' from pgflow.signal where kind = 'c' and run_id = %s", (heir,)
        )
    ] == ["done"]
    sound(conn)
    finish(conn, claim_one(conn))


@pytest.mark.full
def test_what_is_dropped_is_taken_back_the_last_first_before_the_run_goes_on(flow, conn):
    run = launch(flow, shopping.options(key="k"), ["milk", "tea", "gin"])
    made = run.result(SOON)
    flow.app.rewind("k", 2, effects="compensate")
    assert run.result(SOON) == made
    assert World.calls == [
        "buy milk", "buy tea", "buy gin", "return gin", "return tea", "buy tea", "buy gin",
    ]  # fmt: skip
    assert len(set(World.keys)) == 7, "each act has a key of its own"
    assert rows(
        conn,
        "select e.status from pgflow.effects e join pgflow.effects o on o.effect = e.compensates",
    ) == ["confirmed", "confirmed"]
    assert rows(
        conn,
        "select name from pgflow.timeline join pgflow.runs using (run_id) where event = 'operator' "
        "order by seq",
    ) == ["rewind", "compensated"]
    sound(conn)
    flow.app.restart("k", effects="compensate", input={"items": ["rum"]})
    assert run.result(SOON) == ["rum for 100"]
    assert World.there == ["rum"]
    flow.app.restart("k", effects="compensate", input={"items": []})
    assert run.result(SOON) == []
    assert World.there == []
    sound(conn)


@pytest.mark.full
def test_where_two_effects_have_one_name_the_dropped_one_is_taken_back_as_the_one_that_it_was(
    flow, conn
):
    done: list[str] = []

    @effect(name="post", risk="compensable")
    def here(n: int) -> int:
        return n

    @here.compensate
    def recall_here(_: int, n: int) -> None:
        done.append(f"here {n}")

    @effect(name="post", risk="compensable")
    def there(n: int) -> int:
        return n

    @there.compensate
    def recall_there(_: int, n: int) -> None:
        done.append(f"there {n}")

    @workflow
    def posting() -> int:
        return here(1) + there(2)

    run = launch(flow, posting.options(key="k"))
    assert run.result(SOON) == 3
    flow.app.rewind("k", 0, effects="compensate")
    assert run.result(SOON) == 3
    assert done == ["there 2", "here 1"]
    sound(conn)


@pytest.mark.full
async def test_async_apps_do_it_too(aflow, conn):
    run = await launch(aflow, shopping.options(key="k"), ["milk"])
    await run.result(SOON)
    await aflow.app.restart("k", effects="compensate")
    assert await run.result(SOON) == ["milk for 100"]
    await aflow.app.restart("k", effects="reuse")
    assert await run.result(SOON) == ["milk for 100"]
    assert World.calls == ["buy milk", "return milk", "buy milk"]


@pytest.mark.full
def test_sync_workflows_are_taken_back_as_async_ones_are(flow, conn):
    @workflow
    def plain() -> list[str]:
        return [buy.sync("milk"), burn("tea")]

    run = launch(flow, plain.options(key="k"))
    run.result(SOON)
    flow.app.rewind("k", 2, effects="compensate")
    with pytest.raises(RunStuck):
        run.result(SOON)
    flow.app.settle_effect(
        one(conn, "select effect from pgflow.obligations"), "confirmed", why="bought anew"
    )
    assert run.result(SOON) == ["milk for 100", "tea"]


def test_what_is_not_known_is_settled_first(flow, conn):
    flow.include(shopping)
    World.trouble = {"buy tea": 1}
    World.known = "silent"
    run = flow.start(shopping.options(key="k"), ["milk", "tea"])
    with pytest.raises(RunStuck):
        run.result(SOON)
    key = World.keys[-1]
    World.known = "there"
    flow.app.rewind("k", 0, effects="compensate")
    sound(conn)
    assert run.result(SOON) == ["milk for 100", "tea for 100"]
    assert World.calls == [
        "buy milk", "buy tea", "return tea", "return milk", "buy milk", "buy tea",
    ]  # fmt: skip
    assert key not in World.keys[2:]
    assert owed(conn) == []
    sound(conn)


@pytest.mark.full
@pytest.mark.parametrize("who", ["the counterparty", "a person"])
def test_what_turns_out_not_to_be_done_is_not_done_to_be_taken_back(flow, conn, who):
    flow.include(shopping)
    World.trouble = {"buy tea": 1}
    World.known = "silent"
    run = flow.start(shopping.options(key="k"), ["tea"])
    with pytest.raises(RunStuck):
        run.result(SOON)
    World.there.clear()
    if who == "the counterparty":
        World.known = "there"
        flow.skip(timedelta(hours=1))
    flow.app.rewind("k", 0, effects="compensate")
    if who == "a person":
        with pytest.raises(RunStuck):
            run.result(SOON)
        World.known = "there"
        flow.app.settle_effect(World.keys[0], "absent", why="never seen")
    assert run.result(SOON) == ["tea for 100"]
    assert World.calls == ["buy tea", "buy tea"]
    assert World.keys[0] != World.keys[1]
    assert effects(conn, "status", "where generation = 2") == ["confirmed", "failed"]
    assert owed(conn) == []
    sound(conn)


@pytest.mark.full
def test_a_word_that_was_on_its_way_is_heard(flow, conn):
    flow.include(shopping)
    World.trouble = {"buy tea": 1}
    World.known = "silent"
    run = flow.start(shopping.options(key="k"), ["tea"])
    with pytest.raises(RunStuck):
        run.result(SOON)
    with conn.transaction():
        conn.execute(
            "select pgflow.settle_effect(%s, 'confirmed', '\"tea for 100\"')", (World.keys[0],)
        )
        conn.execute("select pgflow.rewind_run('k', 0, effects => 'compensate')")
        sound(conn)
    World.known = "there"
    conn.execute("select pgflow.wake()")
    assert run.result(SOON) == ["tea for 100"]
    assert World.calls == ["buy tea", "return tea", "buy tea"]
    sound(conn)


@pytest.mark.full
def test_a_run_goes_on_only_after_the_last_compensation(flow, conn):
    """A compensation that fails is tried again under its own key; one that cannot be done leaves
    the run stuck and the debt open.
    """
    run = launch(flow, shopping.options(key="k"), ["milk", "tea"])
    run.result(SOON)
    World.trouble = {"return tea": 2, "return milk": 99}
    flow.app.rewind("k", 0, effects="compensate")
    with pytest.raises(RunStuck):
        run.result(SOON)
    assert World.calls[2:5] == ["return tea"] * 3
    assert "buy" not in "".join(World.calls[2:])
    assert len(set(World.keys[2:5])) == 1
    assert run_row(conn, "k", "status, reason") == ("stuck", "effect")
    assert owed(conn) == ["give_back"]
    with pytest.raises(WrongState, match="run 'k' is taking back effects of its dropped part"):
        flow.app.rewind("k", 0, effects="repeat")
    key = one(conn, "select effect from pgflow.obligations")
    flow.app.settle_effect(key, "failed", why="they do not take it back")
    with pytest.raises(RunStuck):
        run.result(SOON)
    assert owed(conn) == ["buy.compensate"], "it is still owed"
    sound(conn)
    assert "buy" not in "".join(World.calls[2:])
    flow.app.settle_effect(
        one(conn, "select effect from pgflow.obligations"), "confirmed", why="given away"
    )
    assert run.result(SOON) == ["milk for 100", "tea for 100"]
    assert owed(conn) == []
    sound(conn)


@pytest.mark.full
async def test_a_crash_at_any_point_of_taking_back_goes_on_where_it_was(aflow, conn):
    aflow.include(shopping)
    items = ["milk", "tea", "gin"]
    run = await aflow.start(shopping.options(key="k"), items)
    await run.result(SOON)
    entered: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    crashed: set[tuple[str, str]] = set()

    async def hang_once(when: str, item: str) -> None:
        if (when, item) not in crashed:
            crashed.add((when, item))
            entered.put_nowait((when, item))
            await asyncio.Event().wait()

    async def slow(bought: str, item: str, cents: int = 100) -> None:
        del bought, cents
        await hang_once("before", item)
        reach("return", item)
        await hang_once("after", item)

    aflow.replace(buy.declared.compensation, slow)
    await aflow.app.rewind("k", 0, effects="compensate")
    for item in items[::-1]:
        for when in ("before", "after"):
            assert await asyncio.wait_for(entered.get(), HANG_SECONDS) == (when, item)
            await aflow.crash()
            await aflow._work()
    assert await run.result(SOON) == [f"{item} for 100" for item in items]
    returned = dict.fromkeys(zip(World.calls[3:], World.keys[3:], strict=True))
    assert [act for act, _ in returned] == [
        "return gin",
        "return tea",
        "return milk",
        *(f"buy {item}" for item in items),
    ], "one key each, in order"
    sound(conn)


@pytest.mark.full
def test_effects_of_every_sort_are_taken_back_and_what_was_accepted_once_it_is_confirmed(
    flow, conn
):
    run = settle(flow, mixed.options(key="k"), "car")
    assert owed(conn) == ["lease"]
    flow.app.restart("k", effects="compensate", input={"item": "van"})
    sound(conn)
    flow.until_idle()
    assert owed(conn) == ["lease"]
    assert World.calls[3:] == [], "whether there is anything to return is the counterparty's to say"
    flow.app.confirm_effect("contract of car 3")
    flow.until_idle()
    assert owed(conn) == ["burn.compensate"]
    assert World.calls[3:] == ["return car 3"]
    flow.app.settle_effect(
        one(conn, "select effect from pgflow.obligations where name = 'burn.compensate'"),
        "confirmed",
        why="bought anew",
    )
    flow.until_idle()
    assert World.calls[4:] == ["return car 1", "buy van 1", "buy van 2", "buy van 3"]
    assert owed(conn) == ["lease"]
    run.send(go, "go")
    flow.app.confirm_effect("contract of van 3")
    assert run.result(SOON) == ["van 1 for 100", "van 2", "contract of van 3", "go"]
    assert owed(conn) == []
    sound(conn)


@pytest.mark.full
def test_what_was_accepted_and_then_rejected_need_not_be_taken_back(flow, conn):
    run = settle(flow, leasing.options(key="k"))
    flow.app.restart("k", effects="compensate")
    flow.until_idle()
    flow.app.settle_effect(
        one(conn, "select effect from pgflow.obligations"), "failed", why="no car left"
    )
    flow.until_idle()
    assert World.calls == ["buy car", "buy car"]
    flow.app.confirm_effect("contract of car")
    assert run.result(SOON) == "contract of car"
    assert owed(conn) == []
    sound(conn)


@pytest.mark.full
def test_a_compensation_that_the_dropped_part_has_begun_goes_on(flow, conn):
    @workflow
    async def doomed(items: list[str]) -> list[str]:
        made = [await buy(item) for item in items]
        if await is_too_dear():
            raise ValueError("too dear")
        return made

    flow.include(doomed)
    World.trouble = {"return tea": 99}
    run = flow.start(doomed.options(key="k"), ["milk", "tea", "gin"])
    with pytest.raises(RunStuck):
        run.result(SOON)
    assert World.there == ["milk"]
    World.trouble, World.prices = {}, {"gin": 1}
    flow.app.restart("k", effects="compensate")
    sound(conn)
    assert run.result(SOON) == ["milk for 100", "tea for 100", "gin for 100"]
    assert World.calls.count("return gin") == 1, "it had been taken back before"
    assert (
        len(
            {key for call, key in zip(World.calls, World.keys, strict=True) if call == "return tea"}
        )
        == 1
    )
    assert World.calls[-4:] == ["return milk", "buy milk", "buy tea", "buy gin"]
    sound(conn)


@pytest.mark.full
def test_a_cancel_waits_until_everything_is_taken_back(flow, conn):
    run = launch(flow, shopping.options(key="k"), ["milk", "tea"])
    run.result(SOON)
    World.trouble = {"return tea": 99}
    flow.app.rewind("k", 0, effects="compensate")
    with pytest.raises(RunStuck):
        run.result(SOON)
    flow.app.cancel("k", why="enough")
    flow.app.settle_effect(one(conn, "select effect from pgflow.obligations"), "confirmed")
    with pytest.raises(pgflow.RunCancelled, match="enough"):
        run.result(SOON)
    assert World.calls[-1] == "return milk"
    sound(conn)


@pytest.mark.full
def test_children_that_have_done_something_cannot_be_taken_back(flow):
    result_of(flow, family.options(key="k"), ["milk"], beside=[helper, patient, waiting])
    with pytest.raises(
        HasActed,
        match=r"child 'child milk', started at unit 1, has done effects that its parent cannot "
        r"take back\. Cut after it, or say reuse or repeat",
    ):
        flow.app.restart("k", effects="compensate")
    run = settle(flow, patient.options(key="p"), "tea")
    flow.app.restart("p", effects="compensate", children="cancel", input={"item": "gin"})
    flow.until_idle()
    flow.app.send("child gin", go, "is ready")
    assert run.result(SOON) == "gin is ready"
    assert flow.app.get("child tea", waiting).status() == "cancelled"


@pytest.mark.full
def test_an_effect_that_no_code_knows_any_more_is_a_persons_to_take_back(flow, conn):
    run = launch(flow, shopping.options(key="k"), ["tea"])
    run.result(SOON)
    conn.execute("set pgflow.rewrites = 'on'")
    conn.execute("update pgflow.unit set name = 'fetch' where kind in ('i', 'C')")
    flow.app.restart("k", effects="compensate", input={"items": []})
    with pytest.raises(RunStuck):
        run.result(SOON)
    assert owed(conn) == ["fetch.compensate"]
    flow.app.settle_effect(
        one(conn, "select effect from pgflow.obligations"), "confirmed", why="by letter"
    )
    assert run.result(SOON) == []
    conn.execute("update pgflow.unit set name = 'buy' where name = 'fetch'")
    sound(conn)


@pytest.mark.full
def test_a_carried_saga_takes_back_what_stays_and_not_what_was_taken_back_before(flow, conn):
    flow.include(stages)
    World.prices["extra"] = 100
    run = flow.start(stages.options(key="k"), 0)
    assert run.result(SOON) == "done"
    World.prices.clear()
    del World.calls[:]
    flow.app.restart("k", effects="compensate")
    with pytest.raises(RunFailed):
        run.result(SOON)
    undone = ["return extra", "return stage 1"]
    again = ["buy stage 1", "buy extra", *undone]
    assert World.calls == [*undone, *again, "return stage 0"]
    sound(conn)
    del World.calls[:]
    flow.app.restart("k", effects="compensate")
    with pytest.raises(RunFailed):
        run.result(SOON)
    assert World.calls == again, "all of it was taken back, the first stage too"
    assert len(set(World.keys)) == len(World.keys)
    assert World.there == []
    sound(conn)


@pytest.mark.full
def test_a_compensation_of_what_stays_is_still_owed_by_the_generation_that_began_it(flow, conn):
    flow.include(stages)
    World.trouble = {"return stage 0": 99}
    run = flow.start(stages.options(key="k"), 0)
    with pytest.raises(RunStuck):
        run.result(SOON)
    World.trouble, World.prices = {}, {"extra": 100}
    flow.app.restart("k", effects="compensate")
    assert run.result(SOON) == "done"
    assert owed(conn) == ["give_back"]
    sound(conn)
    flow.app.settle_effect(
        one(conn, "select effect from pgflow.obligations"), "confirmed", why="they took it back"
    )
    assert owed(conn) == []
    sound(conn)


@pytest.mark.full
def test_an_acceptance_that_was_handed_over_is_taken_back_once(flow, conn):
    run = settle(flow, doomed_lease.options(key="k"))
    flow.app.confirm_effect("contract of car")
    flow.until_idle()
    flow.app.restart("k", effects="reuse")
    flow.until_idle()
    run.send(go, "go")
    with pytest.raises(RunFailed):
        run.result(SOON)
    assert World.calls == ["buy car", "return car"]
    assert World.keys[1] == f"{World.keys[0]}/end_lease/1"
    sound(conn)
    flow.app.restart("k", effects="reuse")
    flow.until_idle()
    assert World.calls[2:] == ["buy car"], "what was taken back is done anew"
    sound(conn)


@pytest.mark.full
def test_a_fork_of_a_carried_saga_is_handed_results_and_takes_back_its_own_only(flow, conn):
    flow.include(stages)
    World.prices["extra"] = 100
    flow.start(stages.options(key="k"), 0).result(SOON)
    World.prices.clear()
    del World.calls[:]
    cut = (
        one(
            conn,
            "select min(seq) from pgflow.effects where generation = 2 and request->>'item' = "
            "'extra'",
        )
        - 1
    )
    cases: list[tuple[Any, list[str]]] = [("reuse", []), ("repeat", ["buy extra", "return extra"])]
    for effects_, calls in cases:
        fork = flow.app.fork("k", at=cut, effects=effects_)
        with pytest.raises(RunFailed):
            flow.app.get(fork, stages).result(SOON)
        assert World.calls == calls
        sound(conn)
    del World.calls[:]
    flow.app.restart(fork, effects="compensate")
    with pytest.raises(RunFailed):
        flow.app.get(fork, stages).result(SOON)
    assert "return stage 0" not in World.calls
    assert World.calls == ["buy stage 1", "buy extra", "return extra", "return stage 1"]
    sound(conn)
