-- Latches: the advisory locks by which our own functions keep out of each other's way.
--
-- Postgres lets everybody who may connect take any advisory lock, without a right of any kind. A number that can be
-- computed from a name would let a stranger hold up answers, retention or seals for as long as its session lives. So
-- each number is a hash of the name and of a secret of this installation (`salt`), which only the owner reads. The hash
-- is a cryptographic one: who has seen one number, which pg_locks shows while it is held, knows no other.

create or replace function pgflow.latch_of_(salt bytea, name text)
returns bigint
language sql
stable
-- Of all ways from bytes to a number, this one has the fewest calls.
return hashtextextended(encode(sha256(salt || convert_to(name, 'UTF8')), 'hex'), 0);
comment on function pgflow.latch_of_(bytea, text)
  is 'Number of the advisory lock of a name, with the secret at hand: what is hot joins that to save a call';

create or replace function pgflow.latch_(name text)
returns bigint
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  -- Not in the language SQL: what has a query in it is not inlined, and planned anew in each transaction.
  return (select pgflow.latch_of_(s.salt, name) from pgflow.salt s);
end
$$;
comment on function pgflow.latch_(text)
  is 'Number of the advisory lock of a name, which only this installation can compute';

create or replace function pgflow.wait_for_latch_(name text, is_shared boolean, what text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  number constant bigint := pgflow.latch_(name);
  before constant text := current_setting('lock_timeout');
  patience constant text := case when before::interval between interval '1 ms' and interval '10 s' then before
    else '10s' end;
  holders text;
begin
  if (case when is_shared then pg_try_advisory_xact_lock_shared(number) else pg_try_advisory_xact_lock(number) end) then
    return;
  end if;
  begin
    perform set_config('lock_timeout', patience, true);
    if is_shared then
      perform pg_advisory_xact_lock_shared(number);
    else
      perform pg_advisory_xact_lock(number);
    end if;
    perform set_config('lock_timeout', before, true);
  exception when lock_not_available then
    select string_agg(format('%s (role %s)', l.pid, coalesce(a.usename::text, 'unknown')), ', ' order by l.pid)
    into holders
    from pg_locks l left join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.granted and l.objsubid = 1
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and (l.classid::bigint << 32 | l.objid::bigint) = number;
    raise exception using errcode = 'PF006',
      message = format('%s is held up: its lock has been with another session for %s: %s', what, patience,
        coalesce('process ' || holders, 'one that has just ended')),
      hint = 'Try again. If it stays, end that session: select pg_terminate_backend(PID).';
  end;
end
$$;
comment on function pgflow.wait_for_latch_(text, boolean, text)
  is 'Takes a latch until the end of the transaction, waiting for ten seconds at most; then it says who has it (PF006)';
