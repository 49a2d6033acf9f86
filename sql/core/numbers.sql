-- Numbers of rows. Logical replication and a load of the rows alone bring rows to another server, not the sequences that
-- numbered them. Work there would use numbers a second time: it fails on a key, or publishes events below the cursor of
-- a relay, which never delivers them. So no worker begins while a sequence is behind the rows.

create or replace function pgflow.used_numbers_()
returns table (sequence regclass, used bigint)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  identity record;
begin
  for identity in
    select d.objid, c.relname, a.attname
    from pg_depend d
    join pg_class c on c.oid = d.refobjid
    join pg_attribute a on a.attrelid = c.oid and a.attnum = d.refobjsubid
    where d.classid = 'pg_class'::regclass and d.deptype = 'i' and c.relnamespace = 'pgflow'::regnamespace
      and a.attidentity = 'a' and c.relkind in ('r', 'p')
  loop
    sequence := identity.objid;
    execute format('select max(%I) from pgflow.%I', identity.attname, identity.relname) into used;
    return next;
  end loop;
  return query
  select 'pgflow.run_id_seq'::regclass,
    greatest((select max(r.run_id) from pgflow.run r), (select s.passed_run_id from pgflow.seal_state s))
  union all
  select 'pgflow.event_id_seq'::regclass, greatest((select max(e.event_id) from pgflow.event e),
    (select max(greatest(r.event_id, r.horizon)) from pgflow.relay r),
    (select greatest(c.event_id, c.horizon) from pgflow.event_cursor c))
  union all
  select 'pgflow.lock_fence_seq'::regclass, (select max(l.fence) from pgflow.lock l)
  union all
  select 'pgflow.nudge_id_seq'::regclass, (select max(n.nudge_id) from pgflow.nudge n)
  union all
  select 'pgflow.put_back_seq'::regclass, (select min(s.signal_id) from pgflow.signal s where s.signal_id < 0);
end
$$;
comment on function pgflow.used_numbers_() is 'The last number of each sequence that a row has; null if there is none';

create or replace function pgflow.check_numbers_()
returns table (invariant text, detail text)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select 'numbers are drawn before rows have them', format('select setval(%L, %s);', n.sequence, n.used)
  from pgflow.used_numbers_() n where abs(n.used) > abs(coalesce(pg_sequence_last_value(n.sequence), 0))
$$;
comment on function pgflow.check_numbers_() is 'No sequence is behind the rows; the detail brings it on';
