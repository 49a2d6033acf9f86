"""Prints `pgflow.sql`: the whole engine as one file for psql, for a database without it.

`python -m tools.sqlfile > pgflow.sql`, then `psql -f pgflow.sql`. It is one transaction.
"""

from __future__ import annotations

from pgflow.schema import migration_sql


def main() -> None:
    """Print it; psql says nothing but errors and warnings."""
    print(f"\\o /dev/null\n{migration_sql()}\\o")


if __name__ == "__main__":
    main()
