-- Inheritance of a run from another: the front part of its journal.
--
-- A fork, and a generation that rewinds or restarts its chain, begin with the units of an *origin* up to a
-- *cut*. They are copied as they are, token 0, so that a replay finds them and the origin can go on or be
-- removed; `run.origin_run_id` and `origin_seq` say which ones these are. What comes after the cut is the
-- *dropped* part. It is not undone: it stays in the origin's journal, and what it did outside has been done.
--
-- Licences of bodies whose outcome is not in the copy are left out of it: the new run asks for its own, under the key
-- that is carried or one of its own. Failed attempts under them keep what says their key.
--
-- Random numbers, and keys that workflow code makes itself, come from a stem. In the copied part the code
-- must draw what it drew then, so `heritage.seeds` says up to which seq which stem holds: [[seq, stem], ...].
-- `heritage.keys` says the same of the idempotency keys of the steps there. The two differ where a generation
-- takes over what the dropped part knew (`carried`): there the code goes on to draw what it drew before, asks
-- for the same steps (name and arguments), and is given the results of those that had completed, without running their
-- bodies, or the keys.

create or replace function pgflow.own_stem_(root uuid, generation int)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select root::text || case when generation > 1 then '~' || generation else '' end
$$;
comment on function pgflow.own_stem_(uuid, int) is 'Beginning of the idempotency keys of a generation';

create or replace function pgflow.stem_at_(segments jsonb, own text, seq int)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select s.stem from pgflow.segment_rows_(segments) s
      where stem_at_.seq <= coalesce(s.upto, 2147483647) order by s.n limit 1),
    own)
$$;
comment on function pgflow.stem_at_(jsonb, text, int)
  is 'The stem that holds at a seq, by segments [[last seq or null, stem], ...] and the run''s own after them';

create or replace function pgflow.segments_(known jsonb, own text, cut int)
returns jsonb
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(jsonb_agg(jsonb_build_array(least(s.upto, cut), s.stem) order by s.n), '[]')
  from (
    select g.n, g.upto, g.stem, coalesce(lag(g.upto) over (order by g.n), 0) as after
    from (
      select k.n, coalesce(k.upto, 2147483647) as upto, k.stem from pgflow.segment_rows_(coalesce(known, '[]')) k
      union all
      select 2147483647, 2147483647, own
    ) g
  ) s
  where s.after < cut
$$;
comment on function pgflow.segments_(jsonb, text, int)
  is 'The segments of an origin, its own stem among them, as far as a cut';

create or replace function pgflow.cut_before_(run_id bigint, step text)
returns int
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  chosen int;
begin
  select u.call into chosen from pgflow.unit u
  where u.run_id = run_id and u.name = step
    and u.kind in ('c', 'H', 'f', 'a', 's', 'X', 'd', 'i', 'q')
  order by u.kind in ('f', 'q') desc, u.call desc limit 1;
  if chosen is null then
    select max(s.call) into chosen
    from pgflow.unit u cross join lateral pgflow.start_rows_(u.starts) s where u.run_id = run_id and s.name = step;
  end if;
  if chosen is null then
    raise exception using errcode = 'PF003',
      message = format('the journal of run %s has no call of step %s', run_id, quote_nullable(step)),
      hint = 'The view pgflow.steps lists the steps of a run.';
  end if;
  return coalesce(
    (select min(u.seq) - 1 from pgflow.unit u where u.run_id = run_id and u.call = chosen),
    (select max(u.seq) from pgflow.unit u where u.run_id = run_id));
end
$$;
comment on function pgflow.cut_before_(bigint, text)
  is 'The seq before the first unit of a step''s last call, of its last failed or refused one if there is one';

create or replace function pgflow.licensed_hash_(starts json)
returns bigint
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select s.args_hash from pgflow.start_rows_(starts) s order by s.n limit 1
$$;
comment on function pgflow.licensed_hash_(json) is 'Hash of the arguments in the first licence of a unit';

create or replace function pgflow.acts_(run_id bigint, cut int)
returns table (seq int, call int, what text, name text, state text, key text, args_hash bigint, payload json)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  me pgflow.run;
begin
  select r.* into me from pgflow.run r where r.run_id = acts_.run_id;
  return query
    with journal as materialized (
      select u.* from pgflow.unit u where u.run_id = acts_.run_id
    ), licence as (
      select distinct on (l.call) l.* from (
        select s.call, j.seq, s.effect as class, s.name, s.ordinal, s.args_hash
        from journal j cross join lateral pgflow.start_rows_(j.starts) s where s.effect in ('s', 't')
      ) l order by l.call, l.seq
    ), ending as (
      select j.* from journal j where j.kind in ('c', 'H', 'f', 'X')
    ), ledger as (
      select distinct on (j.call) j.* from journal j where j.kind in ('i', 'j', 'C', 'F', 'U', 'A', 'E')
      order by j.call, j.seq desc
    )
    select coalesce(e.seq, l.seq), l.call, case l.class when 's' then 'step' else 'transaction' end, l.name,
      case e.kind when 'c' then 'completed' when 'f' then 'failed' when 'X' then 'abandoned' else 'started' end,
      case when l.ordinal ~ '^[0-9]+$' then
        pgflow.stem_at_(me.heritage->'keys', pgflow.own_stem_(me.root, me.generation),
          l.seq) || '/' || l.name || '/' || l.ordinal
      else l.ordinal end,
      l.args_hash, coalesce((select j.payload from journal j where j.kind = 'r' and j.call = l.call order by j.seq desc
        limit 1), e.payload)
    from licence l left join ending e on e.call = l.call
    where e.seq is null or e.seq > cut
    union all
    select e.seq, e.call, 'transaction', e.name, 'completed', format('%s:%s', me.run_id, e.call), e.args_hash, e.payload
    from ending e where e.kind in ('c', 'H') and e.args_hash is not null and e.seq > cut
    union all
    select e.seq, e.call, 'transaction', e.name, 'completed', null, null, e.payload -- of a workflow in SQL
    from ending e cross join lateral pgflow.start_rows_(e.starts) s
    where e.kind = 'c' and s.n = 1 and s.effect = 'q' and e.seq > cut
    union all
    select g.seq, g.call, 'effect', g.name, k.name, i.key, coalesce(i.args_hash, pgflow.licensed_hash_(i.starts)),
      g.payload
    from ledger g join pgflow.unit_kind k on k.kind = g.kind join journal i on i.call = g.call and i.kind = 'i'
    where g.kind <> 'F' and g.seq > cut
    union all
    select j.seq, j.call, 'child', j.payload->>'key',
      coalesce(pgflow.status_(pgflow.newest_run_((j.payload->>'run_id')::bigint)), 'gone'), null, null, null
    from journal j where j.kind = 'k' and j.seq > cut
    union all
    -- What it was given itself, and has not asked for.
    select c.seq, c.call, case when c.key ~ '^[0-9]+:[0-9]+$' then 'transaction' else 'step' end, c.name,
      case when c.is_done then 'completed' else 'started' end, c.key, c.args_hash, c.payload
    from pgflow.carried c where c.run_id = me.run_id and c.what = 'step' and not exists (select from licence l
      where l.ordinal = c.key)
    union all
    select c.seq, c.call, 'effect', c.name, 'effect_confirmed', c.key, c.args_hash, c.payload
    from pgflow.carried c where c.run_id = me.run_id and c.what = 'effect' and not exists (select from journal i
      where i.kind = 'i' and i.key = c.key)
    order by 1, 2;
end
$$;
comment on function pgflow.acts_(bigint, int)
  is 'Acts of a journal after a cut: steps, transactions, effects and children, each with how far it came';

create or replace function pgflow.check_acts_(run_id bigint, cut int, effects text, is_fork boolean)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  act record;
  open record;
  told text := '';
  acts int := 0;
begin
  if effects not in ('reuse', 'repeat', 'compensate') then
    raise exception using errcode = 'PF003',
      message = format('effects must be reuse, repeat or compensate, not %s', quote_literal(effects));
  end if;
  if effects = 'compensate' and is_fork then
    raise exception using errcode = 'PF003',
      message = 'a fork leaves its origin as it is: what that has done is its own to take back',
      hint = 'Rewind the run itself, or fork it with repeat or reuse.';
  end if;
  select e.* into open from pgflow.effects_after_(check_acts_.run_id, cut) e
  where effects = 'reuse' and e.state = 'open' limit 1;
  if open.seq is not null then
    raise exception using errcode = 'PF006',
      message = format('effect %s, intended at unit %s, is not closed, so its result cannot be reused',
        open.name, open.seq),
      hint = 'Settle or confirm it first, or say compensate or repeat.';
  end if;
  for act in select * from pgflow.acts_(check_acts_.run_id, cut) loop
    if act.what = 'step' and act.state <> 'completed' and not is_fork then
      continue; -- it is asked for again under the same key
    end if;
    if act.what = 'child' and act.state in ('queued', 'running', 'waiting', 'paused', 'stuck') and not is_fork then
      continue; -- see drop_children_
    end if;
    acts := acts + 1;
    if acts <= 5 then
      told := told || case when acts > 1 then ', '
        else '' end || format('%s %s (unit %s, %s)', act.what, act.name, act.seq, replace(act.state, '_', ' '));
    end if;
    if effects = 'reuse' and act.what = 'child' and is_fork
      and act.state in ('queued', 'running', 'waiting', 'paused', 'stuck') then
      raise exception using errcode = 'PF006',
        message = format('child %s, started at unit %s, is still %s and has one parent only', quote_literal(act.name),
          act.seq, act.state),
        hint = 'Fork after it has ended, or say repeat.';
    end if;
    if effects in ('reuse', 'compensate') and act.what = 'transaction' and act.key is null then
      raise exception using errcode = 'PF020',
        message = format('step %s (unit %s) is one of a workflow in SQL, which can only be repeated', act.name, act.seq),
        hint = 'Say repeat. Take back by hand what must not stand beside it.';
    end if;
    if effects = 'compensate' and act.what = 'child' and pgflow.has_done_((
      select (k.payload->>'run_id')::bigint from pgflow.unit k where k.run_id = check_acts_.run_id and k.seq = act.seq
    )) then
      raise exception using errcode = 'PF020',
        message = format('child %s, started at unit %s, has done effects that its parent cannot take back',
          quote_literal(act.name), act.seq),
        hint = 'Cut after it, or say reuse or repeat.';
    end if;
  end loop;
  if acts > 0 and effects is null then
    raise exception using errcode = 'PF020',
      message = format('what would be dropped has acted: %s%s', told,
        case when acts > 5 then format(' and %s more', acts - 5) else '' end),
      hint = 'Say effects: reuse hands their results to the new run where it asks for the same, repeat does them again '
        'under new keys, compensate takes effects back first.';
  end if;
  return coalesce(effects, case when is_fork then 'repeat' else 'reuse' end);
end
$$;
comment on function pgflow.check_acts_(bigint, int, text, boolean)
  is 'Refuses (PF020) to drop units that have acted unless effects says what becomes of it; returns reuse, '
     'repeat or compensate';

create or replace function pgflow.effect_ends_(run_id bigint)
returns table (call int, ended_at int)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select e.call, min(e.seq) from (
    select u.call, u.seq, u.kind,
      min(u.seq) filter (where u.kind = 'A') over (partition by u.call) as accepted_at
    from pgflow.unit u where u.run_id = effect_ends_.run_id and u.kind in ('A', 'C', 'E', 'F')
  ) e
  where e.kind in ('C', 'F') or e.kind = 'E' and e.seq > e.accepted_at
  group by e.call
$$;
comment on function pgflow.effect_ends_(bigint)
  is 'Of each effect of a run that is closed, the seq of the unit that closes it';

create or replace function pgflow.parted_(run_id bigint, cut int)
returns table (seq int, what text, name text, taken_back_at int)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  with undo as materialized (
    -- Where a person has, the code never learns of it, wherever it goes on.
    select d.seq, d.payload->>'effect' as key from pgflow.unit d
    where d.run_id = parted_.run_id and d.kind = 'o' and d.name = 'discharged' and d.payload->>'verdict' = 'taken_back'
    union all
    select c.seq, c.payload->>'compensates' from pgflow.unit c
    where c.run_id = parted_.run_id and c.seq > parted_.cut and c.kind = 'i' and c.payload->>'compensates' is not null
      and not exists (select from pgflow.unit f where f.run_id = c.run_id and f.call = c.call and f.kind = 'F')
  )
  select i.seq, 'effect', i.name::text, c.seq
  from undo c join pgflow.unit i on i.run_id = parted_.run_id and i.seq <= parted_.cut and i.kind = 'i'
    and i.key = c.key
  union all
  select s.seq, 'child', s.name::text, c.seq
  from undo c
  join pgflow.unit k on k.run_id = parted_.run_id and k.kind = 'K' and exists (
    select from pgflow.saga_rows_((k.payload->'saga'->'effects')::jsonb) e where e.key = c.key
  )
  join pgflow.unit s on s.run_id = k.run_id and s.call = k.call and s.kind = 'k' and s.seq <= parted_.cut
  order by 1, 4
$$;
comment on function pgflow.parted_(bigint, int)
  is 'Effects before a cut, and children started before it, whose compensation began after it: no run may '
     'go on from there as if they were done';

create or replace function pgflow.cut_to_retry_(run_id bigint)
returns int
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  step text := (select u.name from pgflow.unit u where u.run_id = run_id and u.kind in ('f', 'q')
    order by u.seq desc limit 1);
  cut int := case when pgflow.is_of_file_(run_id) then pgflow.first_again_(run_id)
    when step is not null then pgflow.cut_before_(run_id, step) end;
  first int;
begin
  loop
    select min(s.seq) into first from (
      select p.seq from pgflow.parted_(run_id, cut) p
      union all
      select i.seq from pgflow.unit i join pgflow.effect_ends_(run_id) e on e.call = i.call
      where i.run_id = run_id and i.seq <= cut and i.kind = 'i' and e.ended_at > cut
      union all
      select l.seq from pgflow.left_locks_(run_id, cut, false) l
    ) s;
    exit when first is null;
    cut := first - 1;
  end loop;
  return cut;
end
$$;
comment on function pgflow.cut_to_retry_(bigint)
  is 'The seq before the step that failed last (of a run of a file: first), or before the first effect that was taken '
     'back for it, and before each lock in whose block it would be; null = no step has failed';

create or replace function pgflow.check_cut_(run_id bigint, cut int, edit json, is_fork boolean)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  last_seq int := coalesce((select max(u.seq) from pgflow.unit u where u.run_id = run_id), 0);
  found record;
  parted record;
begin
  if cut is null or cut not between 0 and last_seq then
    raise exception using errcode = 'PF003',
      message = format('there is no unit %s: the journal has units 1 to %s', coalesce(cut::text, '?'), last_seq),
      hint = 'Say 0 to keep nothing of it.';
  end if;
  select u.seq into found from pgflow.unit u where u.run_id = run_id and u.seq <= cut and u.kind = 'n' limit 1;
  if found.seq is not null then
    raise exception using errcode = 'PF003',
      message = format('at unit %s the run continued as new: cut before it', found.seq);
  end if;
  select (o.payload->>'seq')::int as seq, o.seq as returned_at, o.payload->>'name' as name into found
  from pgflow.unit o
  where o.run_id = run_id and o.kind = 'o' and o.name = 'signal_returned' and o.seq > cut
    and (o.payload->>'seq')::int <= cut limit 1;
  if found.seq is not null then
    raise exception using errcode = 'PF003',
      message = format('signal %s, taken at unit %s, went back at unit %s', found.name, found.seq, found.returned_at),
      hint = 'Cut before the one or after the other.';
  end if;
  select i.seq, i.name, e.ended_at, (
    select max(k.seq) from pgflow.unit k where k.run_id = run_id and k.call = i.call and k.seq > cut
      and k.kind in ('j', 'A', 'E')
  ) as known_at into found
  from pgflow.unit i left join pgflow.effect_ends_(run_id) e on e.call = i.call
  where i.run_id = run_id and i.seq <= cut and i.kind = 'i' and coalesce(e.ended_at, 2147483647) > cut
  order by ended_at, known_at, i.seq limit 1;
  if found.ended_at is not null then
    raise exception using errcode = 'PF003',
      message = format('effect %s, intended at unit %s, has ended at unit %s', found.name, found.seq, found.ended_at),
      hint = 'Cut before the one or after the other.';
  end if;
  if found.known_at is not null then
    -- Who does not know of an attempt would believe too early that there was none; what is unknown is found to be so
    -- again.
    raise exception using errcode = 'PF003',
      message = format('effect %s, intended at unit %s, goes on until unit %s', found.name, found.seq, found.known_at),
      hint = 'Cut before the one or after the other.';
  end if;
  -- a fork takes back nothing of what its origin did
  select p.* into parted from pgflow.parted_(run_id, cut) p where not is_fork limit 1;
  if parted.seq is not null then
    raise exception using errcode = 'PF003',
      message = format('%s %s, %s at unit %s, was taken back at unit %s', parted.what, parted.name, case parted.what
        when 'effect' then 'intended' else 'started' end, parted.seq, parted.taken_back_at),
      hint = 'Cut before the one or after the other.';
  end if;
  if is_fork and found.seq is not null then
    raise exception using errcode = 'PF003',
      message = format('effect %s, intended at unit %s, is still open at unit %s and belongs to the origin', found.name,
        found.seq, cut),
      hint = format('Fork at unit %s or before, or after the effect is settled.', found.seq - 1);
  end if;
  select l.* into found from pgflow.left_locks_(run_id, cut, is_fork) l limit 1;
  if found.seq is not null then
    raise exception using errcode = 'PF003',
      message = format('lock %s, won at unit %s, would not be held after unit %s', found.key, found.seq, cut),
      hint = format('Cut at unit %s or before, so that it is taken again%s.', found.seq - 1,
        ', or at unit ' || found.given_back_at || ' or after');
  end if;
  if edit is not null then
    perform pgflow.check_json_(edit, 'the edited result');
    if not exists (select from pgflow.unit u where u.run_id = run_id and u.seq = cut and u.kind in ('c', 'f', 'd')) then
      raise exception using errcode = 'PF003',
        message = format('unit %s is not the result of a step or a decision, and cannot be edited', cut),
        hint = 'The run goes on right after the unit that is edited: cut there.';
    end if;
  end if;
end
$$;
comment on function pgflow.check_cut_(bigint, int, json, boolean)
  is 'Refuses (PF003) a cut that is not in the journal or that another run cannot begin with';

create or replace function pgflow.copy_units_(origin bigint, cut int, heir bigint, edit json)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  copied int;
  old_stem text := (select pgflow.own_stem_(r.root, r.generation) from pgflow.run r where r.run_id = origin);
  stem text := (select pgflow.own_stem_(r.root, r.generation) from pgflow.run r where r.run_id = heir);
begin
  with closed as (
    select u.call from pgflow.unit u
    where u.run_id = origin and u.seq <= cut and u.kind in ('c', 'H', 'f', 'X', 'x')
  ), unlicensed as (
    select distinct on (l.call) l.* from (
      select s.call, u.seq, s.ordinal
      from pgflow.unit u cross join lateral pgflow.start_rows_(u.starts) s
      where u.run_id = origin and u.seq <= cut and s.effect = 's'
    ) l
    where l.call not in (select c.call from closed c) order by l.call, l.seq
  ), done as (
    insert into pgflow.unit (run_id, token, at, recorded_at, due_at, args_hash, seq, call, kind, name, key,
      payload, starts)
    select heir, 0, u.at, u.recorded_at, u.due_at, u.args_hash, u.seq, u.call,
      case when u.seq = cut and u.kind = 'f' and edit is not null then 'c' else u.kind end, u.name,
      -- What will rest on a decision from here on has keys of its own, and so have gates; what has been done keeps its
      -- key.
      case when u.kind in ('d', 'g') and starts_with(u.key, old_stem || '/')
        then stem || substr(u.key, length(old_stem) + 1)
        when u.kind = 'a' then coalesce(u.key, (select l.ordinal from unlicensed l where l.call = u.call))
        else u.key end,
      case when u.seq = cut and edit is not null then edit
        when u.kind = 'i' and starts_with(u.payload->>'decision', old_stem || '/') then json_build_object(
          'request', u.payload->'request', 'risk', u.payload->>'risk', 'code', u.payload->>'code',
          'policy', (u.payload->>'policy')::int,
          'decision', stem || substr(u.payload->>'decision', length(old_stem) + 1),
          'compensates', u.payload->>'compensates',
          'expects', u.payload->>'expects', 'is_undo', (u.payload->>'is_undo')::boolean,
          'leave', u.payload->>'leave')
        else u.payload end,
      case when u.starts is not null then (
        select json_agg(case when s.effect = 'e'
            then json_build_array(s.call, s.effect, s.name, u.key, s.args_hash) else s.start end order by s.n)
        from pgflow.start_rows_(u.starts) s
        where s.effect = 'e' or s.call in (select c.call from closed c)
      ) end
    from pgflow.unit u where u.run_id = origin and u.seq <= cut
    returning 1
  )
  select count(*) into copied from done;
  if copied <> cut then
    raise exception using errcode = 'PF003', message = format('the history of run %s is being removed', origin);
  end if;
end
$$;
comment on function pgflow.copy_units_(bigint, int, bigint, json)
  is 'Copies a journal up to a cut, without the licences of bodies whose outcome is not in it, and with another result '
     'in its last unit if one is given';

create or replace function pgflow.unasked_(run_id bigint)
returns setof pgflow.carried
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select c.* from pgflow.carried c
  where c.run_id = unasked_.run_id and c.what = 'effect'
    and not exists (select from pgflow.unit i where i.run_id = c.run_id and i.kind = 'i' and i.key = c.key)
$$;
comment on function pgflow.unasked_(bigint) is 'Effects that a run was given with their results and has not asked for';

create or replace function pgflow.carry_(origin bigint, cut int, heir bigint)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into pgflow.carried (run_id, args_hash, seq, call, is_done, what, name, key, payload, request, note)
  select heir, a.args_hash, a.seq, row_number() over (order by a.seq, a.call), a.is_done, a.what, a.name, a.key,
    case when a.is_done then a.payload end, a.request, a.note
  from (
    select s.seq, s.call, s.args_hash, s.state = 'completed' as is_done, 'step' as what, s.name, s.key, s.payload,
      null::json as request, null::jsonb as note
    from pgflow.acts_(origin, cut) s
    where s.what in ('step', 'transaction')
      and not pgflow.is_fresh_(s.name, array(select f.node from pgflow.fresh_nodes_(origin) f))
    union all
    -- What was taken back is done anew.
    select e.seq, e.call, e.args_hash, true, 'effect', e.name, e.key, e.result, e.request,
      jsonb_build_object('origin', e.origin, 'is_accepted', e.outcome = 'A', 'risk', e.risk, 'code', e.code)
    from pgflow.effects_after_(origin, cut) e where e.state = 'confirmed' and not e.is_undo and not e.is_undone
    union all
    select c.seq, c.call, c.args_hash, true, 'effect', c.name, c.key, c.payload, c.request, c.note
    from pgflow.unasked_(origin) c where c.key not in (select u.key from pgflow.undone_from_(origin, cut) u
      where u.is_done)
  ) a
$$;
comment on function pgflow.carry_(bigint, int, bigint)
  is 'Hands on what the dropped part knew of its steps and effects: results, and keys of steps that did not complete';

create or replace function pgflow.send_results_(origin bigint, cut int, heir bigint, chain bigint, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  child record;
  message json;
  ended_at timestamptz; -- so that they come in the order in which they ended
begin
  for child in
    select k.seq, k.call, (k.payload->>'run_id')::bigint as chain_id, k.payload->>'key' as key
    from pgflow.unit k
    where k.run_id = origin and k.seq <= cut and k.kind = 'k' and not exists (
      select from pgflow.unit e where e.run_id = origin and e.call = k.call and e.seq <= cut and e.kind in ('K', 'x')
    )
    order by k.seq
  loop
    select u.payload, u.at into message, ended_at from pgflow.unit u
    where u.run_id = origin and u.call = child.call and u.kind = 'K';
    if message is null then
      select json_build_object('status', o.status, 'reason', o.reason, 'output', o.output, 'error', o.error,
        'run_id', o.run_id), o.finished_at into message, ended_at
      from pgflow.outcome o where o.run_id = pgflow.newest_run_(child.chain_id) and o.status <> 'continued';
    end if;
    if message is null then
      raise exception using errcode = 'PF006',
        message = format('child %s, started at unit %s, is still open at unit %s and has one parent only',
          quote_literal(child.key), child.seq, cut),
        hint = format('Cut at unit %s or before, or wait until the child has ended.', child.seq - 1);
    end if;
    insert into pgflow.signal (chain_id, run_id, sent_at, call, kind, name, payload)
    values (chain, heir, least(ended_at, t), child.call, 'c', child.call::text, message);
  end loop;
end
$$;
comment on function pgflow.send_results_(bigint, int, bigint, bigint, timestamptz)
  is 'Posts the results of children that the copied part waits for; refuses (PF006) if one of them is still open';

create or replace function pgflow.check_origins_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'a run begins with the journal of its origin', format('unit %s of run %s', coalesce(u.seq, o.seq), r.run_id)
  from pgflow.run r
  join pgflow.run g on g.run_id = r.origin_run_id
  cross join lateral (select x.seq, x.call, x.kind, x.name, x.at from pgflow.unit x
    where x.run_id = g.run_id and x.seq <= r.origin_seq) o
  full join (
    select x.run_id, x.seq, x.call, x.kind, x.name, x.at, w.origin_run_id, w.origin_seq
    from pgflow.run w join pgflow.unit x on x.run_id = w.run_id and x.seq <= w.origin_seq
    where exists (select from pgflow.run s where s.run_id = w.origin_run_id)
  ) u on u.run_id = r.run_id and u.seq = o.seq
  where (u.call, u.name, u.at) is distinct from (o.call, o.name, o.at) or u.kind is distinct from o.kind
    and not (u.kind = 'c' and o.kind = 'f' and o.seq = r.origin_seq)
  union all
  select 'what is carried is for a run', format('run %s', c.run_id)
  from pgflow.carried c where not exists (select from pgflow.run r where r.run_id = c.run_id);
end
$$;
comment on function pgflow.check_origins_() is 'Forks and later generations begin with the journal of their origin';

comment on column pgflow.carried.run_id is 'The run that may ask for it, or must take it back';
comment on column pgflow.carried.args_hash
  is 'Hash of the arguments with which the step or effect was called; 0 for a child';
comment on column pgflow.carried.seq
  is 'Place in the journal that was dropped; of an effect to be taken back, the place of its intent there; of a child, '
     'the place of its start in this run''s journal';
comment on column pgflow.carried.call
  is 'Number that the call has in the journal of this run, if it is there already; else one that keeps these rows '
     'apart';
comment on column pgflow.carried.is_done
  is 'True: it had completed, and its result is carried. False: a step has its key, under which it runs again; an '
     'effect that must be taken back is open';
comment on column pgflow.carried.what
  is 'step (or transaction), effect and child: handed over where the run asks for the same; undo: an effect to be '
     'taken back before the run goes on';
comment on column pgflow.carried.name is 'Name of the step, effect or workflow';
comment on column pgflow.carried.key
  is 'Idempotency key under which its body was started; for a transaction, the number of the run and of the call; for '
     'a child, its key';
comment on column pgflow.carried.payload is 'Value that it returned; null where it is not done';
comment on column pgflow.carried.request is 'Arguments of an effect, by name';
comment on column pgflow.carried.note
  is 'Further facts on it: the place where it was done, its risk, whether it was accepted, which effect it takes back, '
     'the chain of a child';
