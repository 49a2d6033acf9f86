"""The locks of an upgrade: take all of them before its first change, and never wait while holding
one.

Applications and workers continue while the schema is upgraded. One of their transactions may hold a
lock on any of our tables and wait for another. So an upgrade that waits while it holds a lock can
cause a deadlock, which the server resolves by cancelling either side. Therefore:

- relations that the new files alter, drop or comment on are found in their text and locked before
  any file is applied, so there are no waits later;
- comments conflict only with vacuum and with changes of tables. These locks come first, and the
  wait for them is longer than vacuum takes to make way;
- of the locks that conflict with work, the first is awaited while none of them is held, and only
  for a moment, because all later users queue behind it. The others are tried repeatedly for a
  moment, without ever waiting;
- a failed attempt releases everything, pauses, and starts with the relation that it could not lock.
  So the installer blocks others for two moments at most, until the attempt that succeeds: then they
  wait for the rest of the upgrade.

A view cannot be locked without the tables that it reads, except by changing it. So it is locked by
setting its owner again, while no other lock is seen on it, and with the shortest of waits.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgflow.assets import SqlFile

MODES = ("share update exclusive", "share", "exclusive", "access exclusive")
"""The modes of the locks, from the weakest on."""

_STATEMENTS = {
    r"comment on (table|column|view|index|sequence)": 0,
    r"create (unique )?index (if not exists )?(\w+ )?on": 1,
    r"(update|insert into|delete from)": 2,
    r"(alter|drop|truncate|cluster)( table| view| sequence| index)?( if exists)?": 3,
    r"create or replace view": 3,
    r"trigger \w+ ((before|after) .+? )?on": 3,
}
_TAKEN = {
    re.compile(
        rf"\b{statement} (only )?pgflow\.(?P<name>\w+)".replace(" ", r"\s+"), re.IGNORECASE
    ): mode
    for statement, mode in _STATEMENTS.items()
}
_BODY = re.compile(r"^as \$\$\n.*?^\$\$;$", re.MULTILINE | re.DOTALL)

_TAKE = sql.SQL("""\
do $$
declare
  wanted constant jsonb := {wanted};
  patience constant interval := {patience};
  mine constant int := pg_backend_pid();
  this_database constant oid := (
    select d.oid from pg_database d where d.datname = current_database()
  );
  give_up_at constant timestamptz := clock_timestamp() + patience;
  moment constant interval := '150 ms';
  tried int := 0;
  is_held boolean;
  held_since timestamptz;
  in_the_way text;
  first_of_all text;
  said text;
  one record;
begin
  loop
    begin
      perform set_config('lock_timeout', '3s', true);
      for one in
        select c.relname, max(a.value::int) > 0 as is_altered
        from jsonb_each(wanted) a
        join pg_class n on n.relnamespace = 'pgflow'::regnamespace and n.relname = a.key
        left join pg_index i on i.indexrelid = n.oid
        join pg_class c on c.oid = coalesce(i.indrelid, n.oid) and c.relkind in ('r', 'p')
        group by c.relname order by c.relname
      loop
        in_the_way := one.relname;
        execute format('lock table %s pgflow.%I in share update exclusive mode',
          case when one.is_altered then '' else 'only' end, one.relname);
      end loop;
      perform set_config('lock_timeout', '100ms', true);
      held_since := null;
      for one in
        select c.oid, c.relname, c.relkind,
          ('{{share,exclusive,access exclusive}}'::text[])[max(a.value::int)] as mode
        from jsonb_each(wanted) a
        join pg_class n on n.relnamespace = 'pgflow'::regnamespace
          and (n.relname = a.key
            or a.key = 'own_' and n.relkind = 'v' and starts_with(n.relname, 'own_'))
        left join pg_index i on i.indexrelid = n.oid
        join pg_class c on c.oid = coalesce(i.indrelid, n.oid)
        where a.value::int > 0 and c.relkind in ('r', 'p', 'v')
        group by c.oid, c.relname, c.relkind
        order by coalesce(c.relname = first_of_all, false) desc, c.relkind = 'v', c.relname
      loop
        in_the_way := one.relname;
        is_held := held_since is null;
        if is_held and one.relkind <> 'v' then
          execute format('lock table pgflow.%I in %s mode', one.relname, one.mode);
        elsif is_held then
          execute format('alter view pgflow.%I owner to current_user', one.relname);
        end if;
        held_since := coalesce(held_since, clock_timestamp());
        while not is_held loop
          begin
            if one.relkind <> 'v' then
              execute format('lock table pgflow.%I in %s mode nowait', one.relname, one.mode);
              is_held := true;
            elsif not exists (select from pg_locks l where l.relation = one.oid and l.pid <> mine
              and l.database = this_database) then
              perform set_config('lock_timeout', '1ms', true);
              execute format('alter view pgflow.%I owner to current_user', one.relname);
              is_held := true;
            end if;
          exception when lock_not_available then
            null;
          end;
          if not is_held then
            if clock_timestamp() > held_since + moment then
              raise lock_not_available;
            end if;
            perform pg_sleep(0.002);
          end if;
        end loop;
      end loop;
      exit;
    exception when lock_not_available or deadlock_detected then
      tried := tried + 1;
      first_of_all := in_the_way;
    end;
    if clock_timestamp() > give_up_at then
      -- All that use what must change, since those that use one relation come and go. The oldest
      -- are first, if the owner may see which these are.
      select string_agg(format('%s of %s (%s)%s', o.pid, o.usename, o.name, ', in a transaction '
          'since ' || to_char(o.xact_start, 'HH24:MI:SS')), '; ' order by o.xact_start) into said
      from (
        select distinct a.pid, a.usename, a.xact_start,
          coalesce(nullif(a.application_name, ''), a.backend_type, 'without a name') as name
        from pg_locks l
        join pg_class c on c.oid = l.relation and c.relnamespace = 'pgflow'::regnamespace
        join pg_stat_activity a on a.pid = l.pid
        where l.granted and l.pid <> mine and l.database = this_database and (
          c.relname = first_of_all or (wanted->>c.relname)::int > 0
          or starts_with(c.relname, 'own_'))
        order by a.xact_start limit 5
      ) o;
      raise exception using errcode = 'P0001',
        message = format('another transaction uses pgflow.%s, which must change%s', first_of_all,
          ': session ' || said),
        hint = 'Nothing was done. End that transaction, or run it again later';
    end if;
    perform pg_sleep(least(0.05 * 2 ^ least(tried, 6), 2.0) * (0.5 + random()));
  end loop;
end $$;
""")


def relations_to_lock(files: Iterable[SqlFile], *, are_migrations: bool) -> dict[str, int]:
    """Return the relations whose locks these files need, each with the number of its mode in
    `MODES`. What the bodies of functions do is not looked at, save in migrations.
    """
    found: dict[str, int] = {}
    for file in files:
        text = file.text if are_migrations else _BODY.sub("", file.text)
        for pattern, mode in _TAKEN.items():
            for match in pattern.finditer(text):
                found[match["name"]] = max(mode, found.get(match["name"], 0))
    return found


def take_locks(
    migrations: Iterable[SqlFile], sources: Iterable[SqlFile], patience_seconds: float
) -> str:
    """Return the statement that takes all locks of an upgrade by these files, or fails; it needs
    the rights of the owner.
    """
    wanted = relations_to_lock(sources, are_migrations=False)
    for name, mode in relations_to_lock(migrations, are_migrations=True).items():
        wanted[name] = max(mode, wanted.get(name, 0))
    wanted["own_"] = len(MODES) - 1  # the views of tenants, which every upgrade makes anew
    return _TAKE.format(
        wanted=sql.Literal(json.dumps(wanted, sort_keys=True)),
        patience=sql.Literal(f"{patience_seconds:g} seconds"),
    ).as_string()
