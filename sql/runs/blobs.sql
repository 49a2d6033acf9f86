-- Blobs: values too large for a journal, stored in chunks. A value holds a reference, {"pgflow": "blob", "digest": ...,
-- "size_bytes": ...}, and a blob lives as long as a run has a value that refers to it.
--
-- The transaction that stores a blob also writes the first value that refers to it. So a complete blob without a
-- reference is garbage, and a crash leaves nothing behind, since uncommitted chunks are invisible. The database computes
-- the digest, so you cannot store content under the digest of other content.
--
-- A trigger on each table of values records the references. It fires only for texts that contain "blob", and covers
-- every path that writes values: starts, commits, messages, forks. Values also come from strangers, so a reference to a
-- blob that does not exist is an ordinary value. Reading that blob raises an error.
--
-- Locks: to refer to a blob, or to store it again, is to lock its row for key share, last in the transaction or beside
-- the locks of the same run. Removal skips locked rows and is the last act of its transaction, so it never waits. Once
-- it holds the locks, it looks for references again, in a statement with a later snapshot. So it works only under read
-- committed, and leaves the blobs to the next round otherwise. A round looks at loose blobs only: new ones, and those
-- that have lost a reference.

-- ---------------------------------------------------------------- storing

create or replace function pgflow.open_blob(tenant text default '')
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  made bigint;
begin
  perform pgflow.check_tenant_(tenant);
  insert into pgflow.blob (tenant, stored_at, writer)
  values (pgflow.own_tenant_(tenant), pgflow.now_(), pg_current_xact_id()) returning blob_id into made;
  return made;
end
$$;
comment on function pgflow.open_blob(text)
  is 'Begins a blob for runs of a tenant, and answers its number: add chunks, finish it, and store a value that names '
     'it, all in this transaction';
--! grant open_blob to pgflow_client, pgflow_worker, pgflow_operator, pgflow_tenant

create or replace function pgflow.own_blob_(blob bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if not exists (
    select from pgflow.blob b where b.blob_id = blob and b.writer = pg_current_xact_id() and b.digest is null
  ) then
    raise exception using errcode = 'PF006',
      message = format('this transaction is not storing blob %s', coalesce(blob::text, 'null')),
      hint = 'Store a blob within one transaction: open_blob(), add_chunk() for each 256 KiB, finish_blob().';
  end if;
end
$$;
comment on function pgflow.own_blob_(bigint) is 'Refuses (PF006) a blob that this transaction is not storing';

create or replace function pgflow.add_chunk(blob bigint, n int, data bytea)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.own_blob_(blob);
  if n is null or n < 0 or coalesce(octet_length(data), 0) not between 1 and 262144 then
    raise exception using errcode = 'PF003', message = 'a chunk has a number from 0 on, and 1 to 262144 bytes';
  end if;
  insert into pgflow.blob_chunk (blob_id, n, hash, data) values (blob, n, sha256(data), data);
exception when unique_violation then
  raise exception using errcode = 'PF003', message = format('blob %s has a chunk %s already', blob, n);
end
$$;
comment on function pgflow.add_chunk(bigint, int, bytea)
  is 'Adds a chunk to a blob that this transaction stores: the chunks 0, 1, ... of 262144 bytes each, the last of what '
     'is left. PF003 if there cannot be such a chunk, PF006 if the blob is not open here';
--! grant add_chunk to pgflow_client, pgflow_worker, pgflow_operator, pgflow_tenant

create or replace function pgflow.finish_blob(blob bigint, out digest text, out size_bytes bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  made bytea;
  is_whole boolean;
begin
  perform pgflow.own_blob_(blob);
  select coalesce(sum(octet_length(c.data)), 0), sha256(coalesce(string_agg(c.hash, '' order by c.n), '')),
    coalesce(max(c.n) + 1 = count(*) and bool_and(octet_length(c.data) = 262144 or c.n = c.last), true)
  into size_bytes, made, is_whole
  from (select k.*, max(k.n) over () as last from pgflow.blob_chunk k where k.blob_id = blob) c;
  if not is_whole then
    raise exception using errcode = 'PF003',
      message = format('blob %s lacks a chunk, or has one of less than 262144 bytes before its last', blob);
  end if;
  digest := encode(made, 'hex');
  loop
    perform from pgflow.blob b join pgflow.blob o on o.blob_id = blob
    where b.tenant = o.tenant and b.digest = made for key share of b;
    if found then
      delete from pgflow.blob_chunk c where c.blob_id = blob;
      delete from pgflow.blob b where b.blob_id = blob;
      return;
    end if;
    begin
      update pgflow.blob b set digest = made, size_bytes = finish_blob.size_bytes where b.blob_id = blob;
      return;
    exception when unique_violation then
      if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = '40001', message = 'the same blob was stored meanwhile';
      end if;
    end;
  end loop;
end
$$;
comment on function pgflow.finish_blob(bigint)
  is 'Completes a blob, and answers its digest (the SHA-256 of the SHA-256 of its chunks) and its length in bytes. One '
     'with the same content takes its place, if the tenant has it';
--! grant finish_blob to pgflow_client, pgflow_worker, pgflow_operator, pgflow_tenant

create or replace function pgflow.read_chunk(digest text, n int default 0, tenant text default '')
returns bytea
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  own constant text := pgflow.own_tenant_(tenant);
  found_id bigint;
begin
  if digest is null or digest !~ '^[0-9a-f]{64}$' then
    raise exception using errcode = 'PF003', message = 'the digest of a blob has 64 hexadecimal digits';
  end if;
  select b.blob_id into found_id from pgflow.blob b where b.tenant = own and b.digest = decode(digest, 'hex');
  if found_id is null then
    raise exception using errcode = 'PF003', message = format('blob %s is not in this database', digest),
      hint = 'It goes with the last run that names it, and an export leaves it behind.';
  end if;
  return (select c.data from pgflow.blob_chunk c where c.blob_id = found_id and c.n = read_chunk.n);
end
$$;
comment on function pgflow.read_chunk(text, int, text)
  is 'A chunk of a blob of a tenant; null behind the last. PF003 if there is no such blob';
--! grant read_chunk to pgflow_client, pgflow_worker, pgflow_operator, pgflow_tenant

-- ---------------------------------------------------------------- naming

create or replace function pgflow.blobs_in_(body text)
returns setof bytea
language plpgsql
immutable strict
set search_path = pg_catalog, pg_temp
as $$
begin
  return query select distinct decode(r.value->>'digest', 'hex')
    from jsonb_path_query(body::jsonb,
      'strict $.** ? (@.pgflow == "blob" && @.size_bytes >= 0 && @.digest like_regex "^[0-9a-f]{64}$")') r (value);
exception when data_exception or program_limit_exceeded then
  return;  -- json takes what jsonb does not, such as huge numbers
end
$$;
comment on function pgflow.blobs_in_(text) is 'Digests of the blobs that a JSON text names';

create or replace function pgflow.name_blobs_()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  me bigint;
  body text;
  named bytea;
  blob bigint;
begin
  case tg_argv[0]
    when 'run' then me := new.run_id; body := new.input::text;
    when 'unit' then me := new.run_id; body := new.payload::text;
    when 'outcome' then me := new.run_id; body := new.output::text;
    when 'signal' then me := new.chain_id; body := new.payload::text;
    when 'carried' then me := new.run_id; body := json_build_array(new.payload, new.request)::text;
    when 'saga_effect' then me := new.chain_id; body := json_build_array(new.result, new.request)::text;
  end case;
  for named in select b from pgflow.blobs_in_(body) b order by 1 loop
    select b.blob_id into blob from pgflow.blob b
    where b.tenant = (select r.tenant from pgflow.run r where r.run_id = me) and b.digest = named for key share;
    if found then
      insert into pgflow.blob_use (blob_id, run_id)
      select blob, me where not exists (select from pgflow.blob_use u where u.blob_id = blob and u.run_id = me);
    end if;
  end loop;
  return null;
end
$$;
comment on function pgflow.name_blobs_()
  is 'Notes which blobs a new value of a run names';

-- Once, not with each change of this file: a trigger locks its table.
create or replace function pgflow.add_blob_triggers_()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if exists (select from pg_trigger t where t.tgrelid = 'pgflow.unit'::regclass and t.tgname = 'name_blobs') then
    return;
  end if;
  create trigger name_blobs after insert or update of input on pgflow.run
    for each row when (strpos(new.input::text, '"blob"') > 0) execute function pgflow.name_blobs_('run');
  create trigger name_blobs after insert on pgflow.outcome
    for each row when (strpos(new.output::text, '"blob"') > 0) execute function pgflow.name_blobs_('outcome');
  create trigger name_blobs after insert on pgflow.signal
    for each row when (strpos(new.payload::text, '"blob"') > 0) execute function pgflow.name_blobs_('signal');
  create trigger name_blobs after insert on pgflow.carried
    for each row when (strpos(concat(new.payload, new.request), '"blob"') > 0)
    execute function pgflow.name_blobs_('carried');
  create trigger name_blobs after insert on pgflow.saga_effect
    for each row when (strpos(concat(new.result, new.request), '"blob"') > 0)
    execute function pgflow.name_blobs_('saga_effect');
  create trigger name_blobs after insert on pgflow.unit
    for each row when (strpos(new.payload::text, '"blob"') > 0) execute function pgflow.name_blobs_('unit');
end
$$;
comment on function pgflow.add_blob_triggers_() is 'Has the tables of values note which blobs they name, unless they do';

select pgflow.add_blob_triggers_();

create or replace function pgflow.values_with_blobs_(runs bigint[])
returns table (run_id bigint, body text)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select r.run_id, r.input::text from pgflow.run r
  where r.run_id = any(runs) and strpos(r.input::text, '"blob"') > 0
  union all
  select u.run_id, u.payload::text from pgflow.unit u
  where u.run_id = any(runs) and strpos(u.payload::text, '"blob"') > 0
  union all
  select o.run_id, o.output::text from pgflow.outcome o
  where o.run_id = any(runs) and strpos(o.output::text, '"blob"') > 0
  union all
  select s.chain_id, s.payload::text from pgflow.signal s
  where s.chain_id = any(runs) and strpos(s.payload::text, '"blob"') > 0
  union all
  select d.chain_id, d.payload::text from pgflow.undelivered d
  where d.chain_id = any(runs) and strpos(d.payload::text, '"blob"') > 0
  union all
  select c.run_id, json_build_array(c.payload, c.request)::text from pgflow.carried c
  where c.run_id = any(runs) and strpos(concat(c.payload, c.request), '"blob"') > 0
  union all
  select e.chain_id, json_build_array(e.result, e.request)::text from pgflow.saga_effect e
  where e.chain_id = any(runs) and strpos(concat(e.result, e.request), '"blob"') > 0
$$;
comment on function pgflow.values_with_blobs_(bigint[])
  is 'Values of these runs that may name blobs; messages are of the first run of their chain';

-- ---------------------------------------------------------------- removing

create or replace function pgflow.drop_blobs_(max int default 1000)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  loose bigint[];
  gone bigint[];
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    return 0;
  end if;
  loose := array(
    select b.blob_id from pgflow.blob b where b.is_loose order by b.blob_id limit max for update skip locked
  );
  if loose = '{}' then
    return 0;
  end if;
  with dropped as (
    delete from pgflow.blob b
    where b.blob_id = any(loose) and not exists (select from pgflow.blob_use u where u.blob_id = b.blob_id)
    returning b.blob_id
  )
  select coalesce(array_agg(d.blob_id), '{}') into gone from dropped d;
  delete from pgflow.blob_chunk c where c.blob_id = any(gone);
  update pgflow.blob b set is_loose = false where b.blob_id = any(loose);
  return cardinality(gone);
end
$$;
comment on function pgflow.drop_blobs_(int)
  is 'Looks at loose blobs, up to so many, and removes those that no run names; answers how many. The last step of its '
     'transaction';

create or replace function pgflow.unname_blobs_(runs bigint[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if exists (select from pgflow.blob_use u where u.run_id = any(runs)) then
    with unnamed as (
      delete from pgflow.blob_use u using pgflow.blob b
      where u.run_id = any(runs) and b.blob_id = u.blob_id and (u.run_id, b.digest) not in (
        select v.run_id, d from pgflow.values_with_blobs_(runs) v cross join lateral pgflow.blobs_in_(v.body) d
      ) returning u.blob_id
    )
    update pgflow.blob b set is_loose = true where b.blob_id in (select n.blob_id from unnamed n);
    perform pgflow.drop_blobs_();
  end if;
end
$$;
comment on function pgflow.unname_blobs_(bigint[])
  is 'Forgets what these runs named in values that were redacted, and removes blobs that no run names now';

create or replace function pgflow.check_blobs_()
returns table (invariant text, detail text)
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select 'a blob that a run names is there', format('blob %s of run %s', u.blob_id, u.run_id)
  from pgflow.blob_use u where not exists (select from pgflow.blob b where b.blob_id = u.blob_id)
  union all
  select 'what names a blob is a run', format('run %s names blob %s', u.run_id, u.blob_id)
  from pgflow.blob_use u where not exists (select from pgflow.run r where r.run_id = u.run_id)
  union all
  select 'a blob that no run names is loose', format('blob %s', b.blob_id)
  from pgflow.blob b
  where not b.is_loose and not exists (select from pgflow.blob_use u where u.blob_id = b.blob_id)
  union all
  select 'a blob has all its chunks', format('blob %s', b.blob_id)
  from pgflow.blob b
  cross join lateral (
    select coalesce(sum(octet_length(c.data)), 0) as size_bytes,
      sha256(coalesce(string_agg(c.hash, '' order by c.n), '')) as digest
    from pgflow.blob_chunk c where c.blob_id = b.blob_id
  ) c
  where b.digest is not null and (c.size_bytes, c.digest) is distinct from (b.size_bytes, b.digest)
  union all
  select 'a chunk is of a blob', format('chunk %s of blob %s', c.n, c.blob_id)
  from pgflow.blob_chunk c where not exists (select from pgflow.blob b where b.blob_id = c.blob_id)
$$;
comment on function pgflow.check_blobs_()
  is 'Blobs that runs name are there, with all their chunks';
