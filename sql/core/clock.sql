-- The one clock. Every function reads it once into a variable, after its locks are taken: a volatile
-- clock inside a predicate would defeat the index, and a clock read before a lock may be old when the
-- lock is granted. Tests move time by replacing this function in their own database; there is no
-- setting that could do it in anyone else's.
--
-- What is called for each row, commit or start has a body that is parsed when it is made: its names are resolved for
-- good, so it needs no search_path, and without one it can become part of the statement that calls it.

create or replace function pgflow.now_()
returns timestamptz
language sql
volatile
return clock_timestamp();
comment on function pgflow.now_() is 'The database''s clock, which alone decides what is due or expired';

create or replace function pgflow.micros_(at timestamptz)
returns bigint
language sql
immutable strict
return (extract(epoch from at - timestamptz 'epoch') * 1000000)::bigint;
comment on function pgflow.micros_(timestamptz)
  is 'A time as microseconds since 1970, exactly: the form in which times travel to a worker';

create or replace function pgflow.uuid7_()
returns uuid
language sql
volatile
return encode(set_bit(set_bit(overlay(
  uuid_send(gen_random_uuid()) placing substring(
    int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6
), 52, 1), 53, 1), 'hex')::uuid;
comment on function pgflow.uuid7_() is 'A UUID version 7 (RFC 9562, 5.7): milliseconds since 1970, then random bits';

create or replace function pgflow.uuids7_(count int)
returns uuid[]
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  -- The server's strong random numbers are most of what such a UUID costs: one is asked for, and hashed with each
  -- ordinal.
  -- The time and the bits beside it are those of one UUID, for all. Then come 16 bits of the ordinal, so that a batch
  -- stands in its order (RFC 9562, 6.2) and indexes grow at their end, and 44 bits of the hash.
  select array_agg((s.head || lpad(to_hex(n & 65535), 4,
    '0') || left(encode(sha256(convert_to(s.random || n, 'UTF8')), 'hex'), 11))::uuid)
  from (select left(translate(pgflow.uuid7_()::text, '-', ''), 17) as head,
    gen_random_uuid()::text as random offset 0) s
  cross join generate_series(1, count) n
$$;
comment on function pgflow.uuids7_(int) is 'So many UUIDs of version 7 of one millisecond, for a batch';

create or replace function pgflow.read_clock()
returns timestamptz
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.now_()
$$;
comment on function pgflow.read_clock() is 'Time by the clock that decides what is due, for views';
--! grant read_clock to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
