"""Keep the oids of replaced functions, so that calls in progress end normally.

Planned and running calls refer to a function by its oid, and a running call looks it up again when
it returns. A function that is dropped and created anew has another oid, and the call fails (`cache
lookup failed for function`): a worker would put its run on hold, and a client would lose its start.
So the files use `create or replace`. Before an upgrade applies one, functions of the same names
that cannot be replaced make way: those with other arguments, another result or other parameter
names. The server finds them by comparing with empty functions of the new shapes. Removed functions
make way too, each named in a line ``--! gone NAME`` of a file. They are renamed to `former_<oid>`,
which no role may execute, and dropped by an upgrade at least an hour later.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgflow.assets import Assets, SqlFile

_HEADER = re.compile(
    r"^create or replace function pgflow\.(\w+)(\(.*?)\nlanguage ", re.MULTILINE | re.DOTALL
)
_GONE = re.compile(r"^--! gone (\w+)$", re.MULTILINE)

MAKE_WAY = """\
create function pgflow.make_way_(of_name text)
returns void
language plpgsql
as $$
declare
  one record;
begin
  for one in
    select p.oid, p.oid::regprocedure as signature, pg_has_role(p.proowner, 'usage') as is_ours
    from pg_proc p
    where p.pronamespace = 'pgflow'::regnamespace and p.proname = of_name and not exists (
      select from pg_proc s
      where s.pronamespace = p.pronamespace and s.proname = 'shape_'
        and s.pronargdefaults >= p.pronargdefaults
        and (
          s.proargtypes, s.proallargtypes, s.proargmodes, s.proargnames, s.prorettype, s.proretset
        ) is not distinct from (
          p.proargtypes, p.proallargtypes, p.proargmodes, p.proargnames, p.prorettype, p.proretset
        )
    )
  loop
    if not one.is_ours then -- another user has put it there, and it may be dropped only
      execute format('drop function %s', one.signature);
      continue;
    end if;
    execute format('comment on function %s is %L', one.signature, format(
      '%s until %s: calls that were under way end in it',
      of_name, to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')));
    execute format('alter function %s rename to former_%s', one.signature, one.oid);
  end loop;
  for one in
    select s.oid::regprocedure as signature from pg_proc s
    where s.pronamespace = 'pgflow'::regnamespace and s.proname = 'shape_'
  loop
    execute format('drop function %s', one.signature);
  end loop;
end
$$;
do $$
declare
  one record;
begin
  for one in
    select p.oid::regprocedure as signature from pg_proc p
    where p.pronamespace = 'pgflow'::regnamespace and p.proname ~ '^former_\\d+$'
      and substring(obj_description(p.oid, 'pg_proc') from ' until (\\S+):')::timestamptz
        < now() - interval '1 hour'
      and not exists (
        select from pg_depend d
        where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid and d.deptype = 'n'
      )
  loop
    execute format('drop function %s', one.signature);
  end loop;
end
$$;
"""
MADE_WAY = "drop function pgflow.make_way_(text);\n"


def headers(text: str) -> list[tuple[str, str]]:
    """The functions that a file makes: the name of each, and its parameters with its result."""
    return _HEADER.findall(text)


def names_gone(text: str) -> list[str]:
    """The names in a file that functions had and no function has any more."""
    return _GONE.findall(text)


def make_way(file: SqlFile, assets: Assets) -> str:
    """Rename each function of a file that none of the new shapes can replace; between MAKE_WAY and
    MADE_WAY.
    """
    names = {name for name, _ in headers(file.text)} | set(names_gone(file.text))
    shapes: dict[str, list[str]] = {name: [] for name in sorted(names)}
    for source in assets.sources:
        for name, header in headers(source.text):
            if name in names:
                shapes[name].append(header)
    return "".join(
        "".join(
            f"create function pgflow.shape_{header}\nlanguage plpgsql as 'begin end';\n"
            for header in of_name
        )
        + f"select pgflow.make_way_('{name}');\n"
        for name, of_name in shapes.items()
    )
