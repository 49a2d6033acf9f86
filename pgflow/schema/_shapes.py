"""Functions that are replaced stay the same ones, so that calls under way still find them.

Whoever has planned a call of a function knows it by its oid. Dropped and created anew it has another, and the call fails
(`cache lookup failed for function`), for which a worker would hold its run. So the files say `create or replace`, and
before an upgrade applies one, functions of its names make way that cannot be replaced: those with other arguments,
another result or other names of parameters, which the server compares with empty functions of the coming shapes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgflow.schema._assets import Assets, SqlFile

_HEADER = re.compile(r"^create or replace function pgflow\.(\w+)(\(.*?)\nlanguage ", re.MULTILINE | re.DOTALL)

MAKE_WAY = """\
create function pgflow.make_way_(of_name text)
returns void
language plpgsql
as $$
declare
  former regprocedure;
begin
  for former in
    select p.oid from pg_proc p
    where p.pronamespace = 'pgflow'::regnamespace and p.proname = of_name and not exists (
      select from pg_proc s
      where s.pronamespace = p.pronamespace and s.proname = 'shape_' and s.pronargdefaults >= p.pronargdefaults
        and (s.proargtypes, s.proallargtypes, s.proargmodes, s.proargnames, s.prorettype, s.proretset)
          is not distinct from (p.proargtypes, p.proallargtypes, p.proargmodes, p.proargnames, p.prorettype, p.proretset)
    )
    union all
    select s.oid from pg_proc s where s.pronamespace = 'pgflow'::regnamespace and s.proname = 'shape_'
  loop
    execute format('drop function %s', former);
  end loop;
end
$$;
"""
MADE_WAY = "drop function pgflow.make_way_(text);\n"


def headers(text: str) -> list[tuple[str, str]]:
    """The functions that a file makes: the name of each, and its parameters with its result."""
    return _HEADER.findall(text)


def make_way(file: SqlFile, assets: Assets) -> str:
    """Drops each function of the names in a file that none of the shapes to come can replace; between MAKE_WAY and MADE_WAY."""
    names = {name for name, _ in headers(file.text)}
    shapes: dict[str, list[str]] = {name: [] for name in sorted(names)}
    for source in assets.sources:
        for name, header in headers(source.text):
            if name in names:
                shapes[name].append(header)
    return "".join(
        "".join(f"create function pgflow.shape_{header}\nlanguage plpgsql as 'begin end';\n" for header in of_name)
        + f"select pgflow.make_way_('{name}');\n"
        for name, of_name in shapes.items()
    )  # fmt: skip
