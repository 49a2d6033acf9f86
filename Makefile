# The commands of those who work on pgflow. `make check test` is what a first patch needs.

.PHONY: check test full proof bench docs

check:  # lint, layout, imports, spelling and types: two minutes
	ruff check .
	ruff format --check .
	lint-imports --no-logo --no-cache
	codespell pgflow cli sql migrations docs tools examples bench *.md
	mypy
	pyright

test:  # behaviour, on a real Postgres
	pytest

full:  # all that is deterministic
	pytest -m ""

proof:  # every promise under its faults; commit first
	python -m tests.proof --quick

bench:
	python -m bench --quick --only pgflow

docs:  # all that is made: reference, sync twins, snapshots
	python -m tools.generate
