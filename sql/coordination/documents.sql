-- Documents: values under paths, for data of integrations outside of runs: the checkpoints and the memory of agents,
-- the items of a conversation.
--
-- A path is a list of names. So a folder is a range of the primary key, and reading one is a walk along the index, in
-- either direction. A path and those below it come before the path whose last name has one character more, since no
-- text has a character below chr(1). Several documents are written in the order of their paths: two such writers may
-- wait for each other, but never deadlock. Expired documents are invisible, and each write removes a few of them.

create or replace function pgflow.check_path_(path text[])
returns text[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if path is null or cardinality(path) not between 1 and 50 or array_ndims(path) <> 1
    or exists (select from unnest(path) n where n is null or n = '') or octet_length(array_to_string(path, '')) > 2000
  then
    raise exception using errcode = 'PF003',
      message = 'the path of a document must have 1 to 50 names, none empty, of 2,000 bytes in all',
      hint = 'Shorten its names.';
  end if;
  return path;
end
$$;
comment on function pgflow.check_path_(text[])
  is 'Refuses (PF003) a path that no document can have, and answers any other';

create or replace function pgflow.check_collection_(collection text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.check_name_(collection, 'the name of a collection', 100);
  if collection = 'pgflow.relays' then
    raise exception using errcode = 'PF003',
      message = 'the collection pgflow.relays is written by orders to relays only',
      hint = 'Take another name.';
  end if;
end
$$;
comment on function pgflow.check_collection_(text)
  is 'Raises PF003 for a collection that may not be written: one with a reserved name, or the record of commands to '
     'relays';

create or replace function pgflow.names_of_(path json)
returns text[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.check_form_(json_typeof(path), 'array', 'the path of a document');
  return array(select n.value from json_array_elements_text(path) with ordinality n order by n.ordinality);
end
$$;
comment on function pgflow.names_of_(json) is 'Array of the texts of a JSON array; PF003 if it is none';

create or replace function pgflow.put_documents(documents json)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  t timestamptz;
  document record;
  ttl bigint;
  written int := 0;
  changed int;
begin
  perform pgflow.check_form_(json_typeof(documents), 'array', 'documents');
  perform pgflow.sweep_documents(10);
  t := pgflow.now_();
  for document in
    select distinct on (collection, path) d.collection, d.path, d.value, d.ttl_ms, d.once
    from (
      select (e.value->>'collection') collate "C" as collection, pgflow.names_of_(e.value->'path') collate "C" as path,
        e.value->'value' as value, e.value->>'ttl_ms' as ttl_ms, coalesce(e.value->>'once', 'false') as once,
        e.ordinality
      from json_array_elements(documents) with ordinality e
    ) d
    order by d.collection, d.path, d.ordinality desc
  loop
    perform pgflow.check_collection_(document.collection), pgflow.check_path_(document.path),
      pgflow.check_json_(document.value, 'a document');
    if document.value is null or document.once not in ('true', 'false')
      or (case when document.ttl_ms ~ '^[0-9]{1,13}$' then document.ttl_ms::bigint not between 1 and 3155760000000
        else document.ttl_ms is not null end)
    then
      raise exception using errcode = 'PF003',
        message = 'a document needs a value, a ttl_ms of 1 ms to 100 years, or none, and once is true or false';
    end if;
    ttl := document.ttl_ms;
    insert into pgflow.document as o (created_at, updated_at, expires_at, ttl_ms, collection, path, value)
    values (t, t, t + ttl * interval '1 ms', ttl, document.collection, document.path,
      document.value)
    on conflict (collection, path) do update set
      created_at = case when o.expires_at <= t then t else o.created_at end, updated_at = greatest(t, o.created_at),
      expires_at = excluded.expires_at, ttl_ms = excluded.ttl_ms, value = excluded.value
    where document.once = 'false' or o.expires_at <= t;
    get diagnostics changed = row_count;
    written := written + changed;
  end loop;
  return written;
end
$$;
comment on function pgflow.put_documents(json)
  is 'Writes documents, given as an array of {collection, path, value, ttl_ms, once}: all of them or none. One with '
     'once = true leaves what is there. Answers how many it has written';
--! grant put_documents to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.get_documents(collection text, paths json, refresh boolean default false)
returns table (path text[], value text, created_us bigint, updated_us bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  t timestamptz := pgflow.now_();
  wanted text[];
begin
  perform pgflow.check_form_(json_typeof(paths), 'array', 'paths');
  for wanted in select pgflow.names_of_(p.value) from json_array_elements(paths) p loop
    if refresh then
      -- A concurrent writer gives it a time of its own.
      update pgflow.document d set expires_at = t + d.ttl_ms * interval '1 ms'
      where (d.collection, d.path) in (
        select o.collection, o.path from pgflow.document o
        where o.collection = get_documents.collection and o.path = wanted and o.expires_at > t
        for no key update skip locked
      );
    end if;
    return query
    select d.path, d.value::text, pgflow.micros_(d.created_at), pgflow.micros_(d.updated_at)
    from pgflow.document d
    where d.collection = get_documents.collection and d.path = wanted and (d.expires_at is null or d.expires_at > t);
  end loop;
end
$$;
comment on function pgflow.get_documents(text, json, boolean)
  is 'Documents of these paths, given as an array of arrays, as far as they are there. With refresh, the time to live '
     'of each begins anew';
--! grant get_documents to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.list_documents(
  collection text, prefix text[] default '{}', after text[] default null, descending boolean default false,
  most int default 100
)
returns table (path text[], value text, created_us bigint, updated_us bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  t constant timestamptz := pgflow.now_();
  n constant int := cardinality(prefix);
  low text[] := prefix;
  high text[];
begin
  if array_ndims(prefix) > 1 or array_ndims(after) > 1 then
    raise exception using errcode = 'PF003', message = 'the path of a document is an array of names';
  end if;
  high := case when n > 0 then prefix[1:n - 1] || (prefix[n] || chr(1)) else '{}' end;
  if after is not null and descending then
    high := after;
  elsif after is not null then
    low := array_append(after, '');
  end if;
  if cardinality(high) = 0 then
    high := array[chr(1114111)];
  end if;
  if descending then
    return query
    select d.path, d.value::text, pgflow.micros_(d.created_at), pgflow.micros_(d.updated_at)
    from pgflow.document d
    where d.collection = list_documents.collection and d.path >= low and d.path < high
      and (d.expires_at is null or d.expires_at > t)
    order by d.path desc limit pgflow.at_most_(most);
  else
    return query
    select d.path, d.value::text, pgflow.micros_(d.created_at), pgflow.micros_(d.updated_at)
    from pgflow.document d
    where d.collection = list_documents.collection and d.path >= low and d.path < high
      and (d.expires_at is null or d.expires_at > t)
    order by d.path limit pgflow.at_most_(most);
  end if;
end
$$;
comment on function pgflow.list_documents(text, text[], text[], boolean, int)
  is 'Page of the documents in a folder and in those below, in the order of their paths, or against it. `after` is the '
     'last path of the page before';
--! grant list_documents to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.list_folders(collection text)
returns table (folder text[])
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select distinct d.path[1:cardinality(d.path) - 1] collate "C" as folder from pgflow.document d
  where d.collection = list_folders.collection and (d.expires_at is null or d.expires_at > pgflow.now_())
  order by folder
$$;
comment on function pgflow.list_folders(text) is 'Folders of a collection that have documents';
--! grant list_folders to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.delete_documents(collection text, paths json)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  deleted int;
begin
  perform pgflow.check_collection_(collection), pgflow.check_form_(json_typeof(paths), 'array', 'paths');
  perform from pgflow.document d
  where d.collection = delete_documents.collection
    and d.path in (select pgflow.names_of_(p.value) collate "C" from json_array_elements(paths) p)
  order by d.path for update;
  delete from pgflow.document d
  where d.collection = delete_documents.collection
    and d.path in (select pgflow.names_of_(p.value) collate "C" from json_array_elements(paths) p);
  get diagnostics deleted = row_count;
  return deleted;
end
$$;
comment on function pgflow.delete_documents(text, json)
  is 'Deletes the documents of these paths, given as an array of arrays, and answers how many there were';
--! grant delete_documents to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.delete_folder(collection text, prefix text[])
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  deleted int;
  n constant int := cardinality(pgflow.check_path_(prefix));
  high constant text[] := prefix[1:n - 1] || (prefix[n] || chr(1));
begin
  perform pgflow.check_collection_(collection);
  perform from pgflow.document d
  where d.collection = delete_folder.collection and d.path >= prefix and d.path < high
  order by d.path for update;
  delete from pgflow.document d
  where d.collection = delete_folder.collection and d.path >= prefix and d.path < high;
  get diagnostics deleted = row_count;
  return deleted;
end
$$;
comment on function pgflow.delete_folder(text, text[])
  is 'Deletes the documents in a folder and in those below, and answers how many there were';
--! grant delete_folder to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.sweep_documents(most int default 1000)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  deleted int;
begin
  delete from pgflow.document d where (d.collection, d.path) in (
    select o.collection, o.path from pgflow.document o where o.expires_at <= pgflow.now_()
    order by o.expires_at limit pgflow.at_most_(most) for update skip locked
  );
  get diagnostics deleted = row_count;
  return deleted;
end
$$;
comment on function pgflow.sweep_documents(int)
  is 'Deletes documents that have expired, and answers how many it has found';
--! grant sweep_documents to pgflow_client, pgflow_worker, pgflow_operator

-- ---------------------------------------------------------------- reading

drop view if exists pgflow.documents;
create view pgflow.documents as
select d.collection, d.path, d.value, d.created_at, d.updated_at, d.expires_at from pgflow.document d;
comment on view pgflow.documents is 'Documents, with those that have expired and were not removed yet';
--! grant documents to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.documents.collection is 'Name of the collection';
comment on column pgflow.documents.path is 'Names of folders, the outermost first, and a name in the last one';
comment on column pgflow.documents.value is 'Value, as it is stored';
comment on column pgflow.documents.created_at is 'Time at which the path was written first';
comment on column pgflow.documents.updated_at is 'Time of the last write';
comment on column pgflow.documents.expires_at is 'Time at which it expires; null = never';

create or replace function pgflow.check_documents_()
returns table (invariant text, detail text)
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select 'a document is written before it is changed', format('document %s of collection %s', d.path, d.collection)
  from pgflow.document d where d.updated_at < d.created_at
$$;
comment on function pgflow.check_documents_() is 'Documents have times that can be';
