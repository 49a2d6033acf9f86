# The commands of those who work on pgflow. `make check test` is what a first patch needs.

.PHONY: check lint mypy pyright test full proof bench docs size

check: lint mypy pyright  # lint, layout, imports, spelling and types: two minutes, half with `make -j2`

lint:
	ruff check .
	ruff format --check .
	lint-imports --no-logo --no-cache
	codespell pgflow cli sql migrations docs tools examples bench *.md

mypy pyright:
	$@

test:  # behaviour, on a real Postgres
	pytest

full:  # all that is deterministic
	pytest -m ""

proof:  # every promise under its faults; commit first
	python -m tests.proof

bench:
	python -m bench --quick --only pgflow

size:  # lines of code a room, and what the architecture is held to
	python -m tools.size

docs:  # all that is made: reference, sync twins, snapshots
	python -m tools.generate
