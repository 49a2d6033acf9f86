# The commands of those who work on pgflow. `make check test` is what a first patch needs.

.PHONY: check lint mypy pyright test full proof bench docs size lock sbom

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

lock:  # the versions and hashes that .ci/run installs
	for extras in test "test --extra adapters"; do \
	  printf 'hatchling\neditables\n' | uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	    --no-annotate --no-emit-index-url --custom-compile-command "make lock" \
	    --extra $$extras pyproject.toml - -o .ci/$${extras##* }.txt; \
	done

sbom:  # all that is installed here, with versions and licences: CycloneDX as JSON
	@cyclonedx-py environment --no-validate --pyproject pyproject.toml --output-reproducible --of JSON
