-- Labels that a run changes: a unit of kind `y` has what it changed, null for a name that it took away. What a run was
-- started with is kept when it changes them for the first time: code that reads its labels finds the same ones in a
-- replay.

create or replace function pgflow.labels_at_start_(run_id bigint, labels jsonb)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
return coalesce((select coalesce(x.labels, '{}') from pgflow.relabelled x
  where x.run_id = labels_at_start_.run_id), labels);
comment on function pgflow.labels_at_start_(bigint, jsonb)
  is 'Labels that a run was started with, given its number and the labels that it has now';

create or replace function pgflow.relabelled_(labels jsonb, run_id bigint, after_seq int)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select jsonb_strip_nulls(coalesce(labels, '{}') || jsonb_object_agg(c.key, c.value order by u.seq))
  from pgflow.unit u
  cross join lateral jsonb_each(u.payload::jsonb) c
  where u.run_id = relabelled_.run_id and u.seq > after_seq and u.kind = 'y'
  having count(*) > 0
$$;
comment on function pgflow.relabelled_(jsonb, bigint, int)
  is 'Labels with what the units of a run behind a seq have changed; null = nothing';

create or replace function pgflow.relabel_(me bigint, after_seq int)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  was jsonb := (select r.labels from pgflow.run r where r.run_id = me);
  now jsonb := pgflow.relabelled_(was, me, after_seq);
begin
  if now is not null then
    insert into pgflow.relabelled (run_id, labels) values (me, was) on conflict do nothing;
    update pgflow.run r set labels = now where r.run_id = me;
  end if;
end
$$;
comment on function pgflow.relabel_(bigint, int) is 'Gives a run the labels that its units behind a seq have set';

create or replace function pgflow.check_labels_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'labels are those of the start with the changes that the run has made', format('run %s', x.run_id)
  from (select run_id from pgflow.relabelled union select run_id from pgflow.unit where kind = 'y') x
  left join pgflow.run r on r.run_id = x.run_id
  left join pgflow.relabelled l on l.run_id = x.run_id
  where l.run_id is null or r.labels is null or r.labels is distinct from pgflow.relabelled_(l.labels, x.run_id, 0);
end
$$;
comment on function pgflow.check_labels_() is 'Labels are those of the start with the changes that the run has made';
