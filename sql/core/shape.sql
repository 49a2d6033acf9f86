-- The types of signals, as far as code declares them (`@workflow(signals=[...])`), so that a payload which the code
-- would refuse is refused where it is sent.
--
-- A shape says what is certainly refused, and errs on that side only: what fits it may still not fit the code, which
-- then holds its run (reason `signal`). It is `true`, which anything fits, or an object whose every member must hold:
--
--   any      [shape, ...]      one of these fits
--   is       [kind, ...]       jsonb_typeof is one of these
--   one_of   [value, ...]      equal to one of these
--   like     expression        of a text: it matches, whatever the case of its letters
--   whole    true              of a number: it is one
--   ge gt le lt  number        of a number
--   items    shape             of an array: each element (of the first thousand)
--   values   shape             of an object: each value (likewise)
--   fields   [[[name, ...], shape, required, about], ...]   of an object; a field may have several names
--   closed   true              of an object: it has no other fields
--
-- Some members judge nothing, and are for forms: `what` (the word for a `like`), `about` a field, `choices` (values
-- that are offered) and `chars` ([least, most] of a text).
--
-- Which code a run will meet is not known: a payload is sent if one of the shapes that live workers of the workflow
-- have declared takes it, or one of them has declared none. Where no worker is there, the code that was served last
-- counts.

create or replace function pgflow.misfit_(shape jsonb, value jsonb, place text default '')
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  kind text := jsonb_typeof(value);
  shown text := left(value::text, 60) || case when length(value::text) > 60 then '...' else '' end;
  number numeric;
  part record;
  why text;
begin
  -- Behind a tag stands what only the code can judge: a subclass, a member of a union.
  if jsonb_typeof(shape) <> 'object' or kind = 'object' and value ? '$pgflow' then
    return null;
  end if;
  if shape ? 'any' then
    for part in select o.v from jsonb_array_elements(shape->'any') as o (v) loop
      why := pgflow.misfit_(part.v, value, place);
      exit when why is null;
    end loop;
    if why is not null then
      return case when jsonb_array_length(shape->'any') = 1 then why
        else format('%s fits none of the types it may have (the last: %s)', coalesce(nullif(place, ''), 'it'), why) end;
    end if;
  end if;
  if shape ? 'is' and not shape->'is' ? kind then
    return format('%s is %s, and must be %s', coalesce(nullif(place, ''), 'it'), kind,
      (select string_agg(k, ' or ') from jsonb_array_elements_text(shape->'is') k));
  end if;
  if shape ? 'one_of' and not exists (select from jsonb_array_elements(shape->'one_of') o where o = value) then
    return format('%s is %s, and must be one of %s', coalesce(nullif(place, ''), 'it'), shown, shape->>'one_of');
  end if;
  if kind = 'string' and shape ? 'like' and (value #>> '{}') !~* (shape->>'like') then
    return format('%s is %s, not a %s', coalesce(nullif(place, ''), 'it'), shown, shape->>'what');
  end if;
  if kind = 'number' then
    number := (value #>> '{}')::numeric;
    if shape ? 'whole' and number % 1 <> 0 then
      return format('%s is %s, not a whole number', coalesce(nullif(place, ''), 'it'), shown);
    end if;
    if number < (shape->>'ge')::numeric or number <= (shape->>'gt')::numeric or number > (shape->>'le')::numeric
      or number >= (shape->>'lt')::numeric then
      return format('%s is %s, and must be %s', coalesce(nullif(place, ''), 'it'), shown, concat_ws(' and ',
        'at least ' || (shape->>'ge'), 'more than ' || (shape->>'gt'), 'at most ' || (shape->>'le'),
        'less than ' || (shape->>'lt')));
    end if;
  elsif kind = 'array' and shape ? 'items' then
    for part in select e.v, e.n from jsonb_array_elements(value) with ordinality as e (v, n) limit 1000 loop
      why := pgflow.misfit_(shape->'items', part.v, format('%s[%s]', place, part.n - 1));
      exit when why is not null;
    end loop;
  elsif kind = 'object' then
    if shape ? 'values' then
      for part in select e.key, e.value from jsonb_each(value) e limit 1000 loop
        why := pgflow.misfit_(shape->'values', part.value, concat_ws('.', nullif(place, ''), part.key));
        exit when why is not null;
      end loop;
    end if;
    for part in select f->0 as names, f->0->>0 as name, f->1 as inner_, (f->2)::boolean as is_required
      from jsonb_array_elements(shape->'fields') f loop
      exit when why is not null;
      if part.is_required and not exists (select from jsonb_array_elements_text(part.names) n where value ? n) then
        why := format('%s is missing', concat_ws('.', nullif(place, ''), part.name));
      elsif (select count(*) from jsonb_array_elements_text(part.names) n where value ? n) = 1 then
        why := (select pgflow.misfit_(part.inner_, value->n, concat_ws('.', nullif(place, ''), n))
          from jsonb_array_elements_text(part.names) n where value ? n);
      end if;
    end loop;
    if why is null and shape ? 'closed' then
      select format('%s is unknown', concat_ws('.', nullif(place, ''), k)) into why from jsonb_object_keys(value) k
      where not exists (select from jsonb_array_elements(shape->'fields') f where f->0 ? k) order by k limit 1;
    end if;
  end if;
  return why;
end
$$;
comment on function pgflow.misfit_(jsonb, jsonb, text) is 'Reason why a value does not fit a shape; null = it may fit';

create or replace function pgflow.check_payload_(run_id bigint, key text, name text, payload json)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = on
as $$
#variable_conflict use_variable
declare
  workflow text;
  version text;
  ids int[];
  shape jsonb;
  why text;
begin
  if not exists (select from pgflow.code_signal s where s.signal = name) or pgflow.is_envelope_(payload::jsonb) then
    return; -- what is encoded was checked by its sender
  end if;
  select l.workflow, l.version into workflow, version
  from pgflow.run r join pgflow.lane l on l.lane_id = r.lane_id where r.run_id = check_payload_.run_id;
  ids := (pgflow.known_code_(workflow, version)).code_ids;
  if exists (select from unnest(ids) i
    where not exists (select from pgflow.code_signal s where s.signal = name and s.code_id = i)) then
    return;
  end if;
  for shape in select distinct s.shape from pgflow.code_signal s where s.signal = name and s.code_id = any(ids) loop
    why := pgflow.misfit_(shape, coalesce(payload, 'null')::jsonb);
    if why is null then
      return;
    end if;
  end loop;
  if why is not null then
    raise exception using errcode = 'PF003',
      message = format('the payload of signal %s does not fit the code of run %s: %s. Nothing was sent',
        quote_literal(name), quote_literal(key), why),
      hint = format('Workflow %s declares what this signal carries. If newer code takes this, start a worker that has '
        'it first.', workflow);
  end if;
end
$$;
comment on function pgflow.check_payload_(bigint, text, text, json)
  is 'Refuses (PF003) the payload of a signal that no registered version of the run''s code would take';

comment on column pgflow.code_signal.shape is 'Payloads that the code certainly refuses, see sql/core/shape.sql';
