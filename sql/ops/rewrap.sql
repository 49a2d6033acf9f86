-- Rotation of keys. A codec such as `Keyring` encrypts values with data keys, and stores in each envelope the data key
-- of that value, wrapped with a key of yours, as `$wrap`. To rotate means to wrap the data keys anew: values stay as
-- they are encrypted. So does the chain of seals, which holds an envelope without its wrap (`unwrapped_`).
--
-- A codec wraps, and SQL finds and replaces: a batch is a range of pages of a table. `find_wraps` answers what is
-- wrapped there with other keys than the present one, and `replace_wraps` puts new wraps in their places. It passes
-- over rows that others have locked, and rows may move behind a batch. So passes go on until one finds none.
--
-- Columns are found by their type, json or jsonb or a domain of it: an envelope may be in a value of any table, and in
-- a text within a value.
-- Locks: shares `pgflow.retention`, so that no redaction looks for copies of a value meanwhile; rows SKIP LOCKED.

create or replace function pgflow.json_columns_()
returns table (name text, columns text[])
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select c.relname::text collate "C", array_agg(a.attname::text order by a.attnum)
  from pg_class c join pg_attribute a on a.attrelid = c.oid join pg_type t on t.oid = a.atttypid
  where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
    and a.attgenerated = '' and coalesce(nullif(t.typbasetype, 0), t.oid) in ('json'::regtype, 'jsonb'::regtype)
  group by c.relname
$$;
comment on function pgflow.json_columns_() is 'Tables with values, and the columns of these';

create or replace function pgflow.find_wraps(key_id text, after jsonb default null, pages int default 128)
returns table (wraps text[], name text, first_page bigint, next jsonb)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  columns text[];
  size bigint;
begin
  select j.name, j.columns into find_wraps.name, columns from pgflow.json_columns_() j
  where after is null or j.name > after->>'name' or j.name = after->>'name' and after->'page' <> 'null'
  order by j.name limit 1;
  if not found then
    return;
  end if;
  first_page := case when find_wraps.name = after->>'name' then (after->>'page')::bigint else 0 end;
  size := pg_relation_size(format('pgflow.%I', find_wraps.name)::regclass) / current_setting('block_size')::int;
  next := jsonb_build_object('name', find_wraps.name,
    'page', case when first_page + pages < size then first_page + pages end);
  execute format('select array(select distinct m[1] from pgflow.%I t, regexp_matches(concat_ws('' '', %s), '
    '''[$]wrap[^A-Za-z0-9._-]+([A-Za-z0-9._-]+:[A-Za-z0-9+/=]+)'', ''g'') m '
    'where t.ctid >= %L::tid and t.ctid < %L::tid and split_part(m[1], '':'', 1) <> %L)', find_wraps.name,
    (select string_agg(format('t.%I', c), ', ') from unnest(columns) c), format('(%s,0)', first_page),
    format('(%s,0)', first_page + pages), key_id)
  into wraps;
  return next;
end
$$;
comment on function pgflow.find_wraps(text, jsonb, int)
  is 'Data keys of values that are wrapped with another key than the one named, in so many pages of a table behind '
     '`after`; answers the table, its first page, and where to go on. No row: that was the last table';
--! grant find_wraps to pgflow_operator

create or replace function pgflow.rewrapped_(body text, changes jsonb)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  change record;
begin
  if position('$wrap' in body) > 0 then
    for change in select c.key, c.value from jsonb_each_text(changes) c loop
      body := replace(body, change.key, change.value);
    end loop;
  end if;
  return body;
end
$$;
comment on function pgflow.rewrapped_(text, jsonb) is 'Text of a value with other wraps in place of those named';

create or replace function pgflow.replace_wraps(name text, first_page bigint, changes jsonb, pages int default 128)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  wrap constant text := '[A-Za-z0-9._-]{1,64}:[A-Za-z0-9+/=]{40,255}';
  columns text[];
  replaced int;
begin
  -- Only a wrap, so that no other text of a value can be changed by this.
  perform pgflow.check_form_(jsonb_typeof(changes), 'object', 'changes');
  if exists (
    select from jsonb_each_text(changes) c where c.key || ' ' || c.value !~ ('^' || wrap || ' ' || wrap || '$')
  ) then
    raise exception using errcode = 'PF003', message = 'changes must be wraps by wraps';
  end if;
  columns := (select j.columns from pgflow.json_columns_() j where j.name = replace_wraps.name);
  if columns is null or changes = '{}' then
    return 0;
  end if;
  perform pg_advisory_xact_lock_shared(pgflow.latch_('retention'));
  perform set_config('pgflow.rewrites', 'on', true);
  execute format('with held as materialized (select t.ctid as at from pgflow.%I t where t.ctid >= %L::tid '
    'and t.ctid < %L::tid and (%s) for update skip locked) update pgflow.%I t set %s from held where t.ctid = held.at',
    name, format('(%s,0)', first_page), format('(%s,0)', first_page + pages),
    (select string_agg(format('t.%I::text <> pgflow.rewrapped_(t.%I::text, %L)', c, c, changes), ' or ')
      from unnest(columns) c), name,
    (select string_agg(format('%I = pgflow.rewrapped_(t.%I::text, %L)::%s', a.attname, a.attname, changes,
        format_type(a.atttypid, null)), ', ')
      from pg_attribute a where a.attrelid = format('pgflow.%I', name)::regclass and a.attname = any(columns)));
  get diagnostics replaced = row_count;
  perform set_config('pgflow.rewrites', 'off', true);
  return replaced;
end
$$;
comment on function pgflow.replace_wraps(text, bigint, jsonb, int)
  is 'Puts new wraps in the place of those named in some pages of a table, in rows that no other session has locked; '
     'answers the number of rows. PF003 if they are no wraps';
--! grant replace_wraps to pgflow_operator
