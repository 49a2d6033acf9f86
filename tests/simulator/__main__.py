"""`python -m tests.simulator [DSN] [--seed S] [--transactions N]`: see the package."""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulator import __doc__ as about
from tests.simulator.broken import BROKEN
from tests.simulator.campaign import Order, Totals, play_many


def main() -> int:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "dsn",
        nargs="?",
        default=os.environ.get("PGFLOW_TEST_DSN"),
        help="a superuser's; else PGFLOW_TEST_DSN",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transactions", type=int, default=4000, help="of each process")
    parser.add_argument("--processes", type=int, default=1, help="each with seeds of its own")
    parser.add_argument(
        "--check-every", type=int, default=16, help="run pgflow.check() at every n-th change"
    )
    parser.add_argument("--without", default="", help="faults to leave out, with commas")
    parser.add_argument(
        "--broken",
        choices=sorted(BROKEN),
        metavar="NAME",
        help=f"play with a broken variant: {', '.join(sorted(BROKEN))}",
    )
    options = parser.parse_args()
    if options.dsn is None:
        parser.error("neither a DSN nor PGFLOW_TEST_DSN")
    without = tuple(f for f in options.without.split(",") if f)
    order = Order(
        options.dsn,
        options.seed,
        options.transactions,
        broken=options.broken,
        without=without,
        check_every=options.check_every,
    )
    totals = play_many(order, options.processes)
    required = totals.required(options.transactions * options.processes)
    _print(totals, required, options.broken)
    void = [fault for fault, (times, least) in required.items() if times < least]
    if void and not without and not options.broken:
        print(f"too seldom, so nothing is proven: {', '.join(void)}")
    return 1 if totals.broken or (void and not without) else 0


def _print(totals: Totals, required: dict[str, tuple[int, int]], variant: str | None) -> None:
    for story in totals.broken:
        print(*story.trace, sep="\n")
        print(
            f"seed {story.seed} breaks a promise after {story.transactions} transactions: "
            f"{story.broken[1] if story.broken else ''}"
        )
        leave_out = f" --without {','.join(story.without)}" if story.without else ""
        broken = f" --broken '{variant}'" if variant else ""
        print(
            f"again: python -m tests.simulator --seed {story.seed} --transactions "
            f"{story.before_healing or story.transactions} --check-every 1{leave_out}{broken}"
        )
    for fault, (times, least) in required.items():
        print(f"{times:8} {fault} (at least {least})")
    print(
        f"{totals.transactions} transactions of {totals.runs} runs in {totals.episodes} episodes; "
        f"check() ran {totals.checks} times; {len(totals.broken)} promises broken"
    )
    print("hashes:", *(f"{seed}:{digest}" for seed, digest in sorted(totals.hashes.items())))


if __name__ == "__main__":
    sys.exit(main())
