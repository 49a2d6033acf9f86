-- Functions that calls of landed versions still make while the schema is upgraded under them. A call that waits for the
-- installer's locks goes on in the text it began with, and asks for the functions of then: without them it fails, and a
-- worker of a landed version holds the run for that. They go with the next minor release.

create or replace function pgflow.settle_all_(
  questions jsonb, t timestamptz, out answers jsonb, out to_wake bigint[], out lanes int[]
)
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select a.answers, a.to_wake, a.lanes from pgflow.answer_all_(questions, t) a
$$;
comment on function pgflow.settle_all_(jsonb, timestamptz) is 'As answer_all_; for calls that an upgrade has overtaken';

create or replace function pgflow.settle_(q jsonb, t timestamptz)
returns jsonb
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  done record;
begin
  select s.answers->0 as answer, s.to_wake, s.lanes into done from pgflow.answer_all_(jsonb_build_array(q), t) s;
  return done.answer || jsonb_build_object('wake', to_jsonb(done.to_wake), 'lanes', to_jsonb(done.lanes));
end
$$;
comment on function pgflow.settle_(jsonb, timestamptz)
  is 'As answer_all_, of one run; for calls that an upgrade has overtaken';

create or replace function pgflow.start_children_(
  q jsonb, t timestamptz, inout seq int, out units jsonb, out lanes int[]
)
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select c.seq, c.units, c.lanes
  from pgflow.start_children_(jsonb_build_array(q), array[1], array[start_children_.seq], t) c
$$;
comment on function pgflow.start_children_(jsonb, timestamptz, int)
  is 'As the one of batches, of one run; for calls that an upgrade has overtaken';

create or replace function pgflow.look_(q jsonb, t timestamptz, inout seq int, out units jsonb, out pause boolean)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  questions jsonb := jsonb_build_array(q);
  mailed int[] := case when exists (select from pgflow.signal s where s.chain_id = (q->'chain')::bigint) then array[1]
    else '{}' end;
  found record;
begin
  units := '[]';
  pause := pgflow.hear_(questions, mailed) = array[1];
  for found in select l.seq, l.units from pgflow.look_all_(questions, array[1], array[look_.seq], mailed, t) l loop
    seq := found.seq;
    units := found.units;
  end loop;
end
$$;
comment on function pgflow.look_(jsonb, timestamptz, int)
  is 'As hear_ and look_all_, of one run; for calls that an upgrade has overtaken';

create or replace function pgflow.park_(q jsonb, seq int, t timestamptz)
returns boolean
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.park_all_(jsonb_build_array(q), array[1], array[seq], t) <> '{}'
$$;
comment on function pgflow.park_(jsonb, int, timestamptz)
  is 'As park_all_, of one run; for calls that an upgrade has overtaken';

create or replace function pgflow.as_intent_(e jsonb)
returns jsonb
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case jsonb_typeof(e)
    when 'array' then jsonb_build_object('call', e->0, 'name', e->1, 'key', e->2, 'args_hash', e->3, 'risk', e->4,
      'request', e->5, 'ordinal', e->6, 'ground', e->7, 'seconds', e->8, 'decision', e->9, 'compensates', e->10,
      'reads', e->11, 'is_keyed', e->12, 'code', e->13, 'expects', e->14, 'notice', e->15, 'is_undo', e->16)
    else e
  end
$$;
comment on function pgflow.as_intent_(jsonb) is 'An intent as an object; workers of landed versions send an array';

create or replace function pgflow.effect_end_(run_id bigint, call int)
returns int
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select e.ended_at from pgflow.effect_ends_(effect_end_.run_id) e where e.call = effect_end_.call
$$;
comment on function pgflow.effect_end_(bigint, int)
  is 'As effect_ends_, of one effect; for calls that an upgrade has overtaken';

-- Names of functions that are gone: upgrades have them make way.
--! gone said_of_update_
