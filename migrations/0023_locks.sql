-- Locks: who holds a key, who waits for it, and which keys somebody must look at.
--
-- A fence is a number of one sequence, drawn by whoever has the key to itself: so fences of a key grow, and no row has to
-- remember a key that nobody uses.

create sequence pgflow.lock_fence_seq;
comment on sequence pgflow.lock_fence_seq is 'Numbers the times that a lock was won';

create table pgflow.lock (
  fence bigint primary key,
  run_id bigint,
  since timestamptz not null,
  expires_at timestamptz,
  call int,
  is_shared boolean not null,
  key text not null check (octet_length(key) between 1 and 255),
  holder text not null check (octet_length(holder) between 1 and 512),
  check ((run_id is null) = (call is null)),
  check (run_id is not null or expires_at is not null)
);
comment on table pgflow.lock is 'Who holds a lock: a run, or plain code for a limited time; several share one if all of them said so';
comment on column pgflow.lock.fence is 'The number of this time that the lock was won: greater than that of every holder of the key before';
comment on column pgflow.lock.run_id is 'The run that holds it; null = plain code';
comment on column pgflow.lock.since is 'Time at which it was won';
comment on column pgflow.lock.expires_at is 'Time from which it counts no more; null = as long as its run holds it';
comment on column pgflow.lock.call is 'Number of the call of the run that asked for it; 0 = it comes from the generation before, and nobody has asked yet';
comment on column pgflow.lock.is_shared is 'True if others may hold it too that share it';
comment on column pgflow.lock.key is 'Name of what is locked';
comment on column pgflow.lock.holder is 'Key of the run, or the name that plain code gave';
-- The last line of defence, whatever went wrong before it.
-- squawk-ignore require-concurrent-index-creation
create unique index lock_exclusive_key on pgflow.lock (key) where not is_shared;
-- squawk-ignore require-concurrent-index-creation
create index lock_key_idx on pgflow.lock (key);
-- squawk-ignore require-concurrent-index-creation
create index lock_run_idx on pgflow.lock (run_id) where run_id is not null;
-- squawk-ignore require-concurrent-index-creation
create index lock_expires_idx on pgflow.lock (expires_at) where expires_at is not null;

create table pgflow.lock_wait (
  ticket bigint generated always as identity primary key,
  run_id bigint,
  asked_at timestamptz not null,
  expires_at timestamptz,
  ttl interval,
  call int,
  is_shared boolean not null,
  is_checked boolean not null,
  key text not null check (octet_length(key) between 1 and 255),
  holder text not null check (octet_length(holder) between 1 and 512),
  within bigint[] not null default '{}',
  check ((run_id is null) = (call is null)),
  check (run_id is not null or expires_at is not null and ttl is not null)
);
comment on table pgflow.lock_wait is 'Who waits for a lock, in the order in which they asked';
comment on column pgflow.lock_wait.ticket is 'Its place in the queue of the key';
comment on column pgflow.lock_wait.run_id is 'The run that waits; null = plain code';
comment on column pgflow.lock_wait.asked_at is 'Time at which it asked';
comment on column pgflow.lock_wait.expires_at is 'Plain code: when it must have asked again, or it is passed over; null for a run';
comment on column pgflow.lock_wait.ttl is 'Time for which it wants the lock; null = until it gives it back';
comment on column pgflow.lock_wait.call is 'Number of the call of the run';
comment on column pgflow.lock_wait.is_shared is 'True if it would share the lock';
comment on column pgflow.lock_wait.is_checked is 'True once it is known to close no circle of runs that wait for each other';
comment on column pgflow.lock_wait.key is 'Name of what is locked';
comment on column pgflow.lock_wait.holder is 'Key of the run, or the name that plain code gave';
comment on column pgflow.lock_wait.within is 'Fences that the code holds around this: they are not given back before it has the lock';
-- squawk-ignore require-concurrent-index-creation
create index lock_wait_key_idx on pgflow.lock_wait (key, ticket);
-- squawk-ignore require-concurrent-index-creation
create unique index lock_wait_call_key on pgflow.lock_wait (run_id, call) where run_id is not null;
-- squawk-ignore require-concurrent-index-creation
create unique index lock_wait_holder_key on pgflow.lock_wait (key, holder) where run_id is null;
-- squawk-ignore require-concurrent-index-creation
create index lock_wait_expires_idx on pgflow.lock_wait (expires_at) where expires_at is not null;
-- squawk-ignore require-concurrent-index-creation
create index lock_wait_unchecked_idx on pgflow.lock_wait (key, ticket) where not is_checked;
-- squawk-ignore require-concurrent-index-creation
create index lock_wait_within_idx on pgflow.lock_wait using gin (within) where within <> '{}';

create table pgflow.lock_nudge (
  nudge_id bigint generated always as identity primary key,
  nudged_at timestamptz not null,
  key text not null
);
comment on table pgflow.lock_nudge is 'Keys of locks to look at: written by who could not look itself, deleted by the sweep that could';
comment on column pgflow.lock_nudge.nudge_id is 'The number of the nudge';
comment on column pgflow.lock_nudge.nudged_at is 'Time of writing: as long as it is new, whoever wakes runs sweeps soon';
comment on column pgflow.lock_nudge.key is 'Name of what is locked';

create table pgflow.lock_broken (
  fence bigint primary key,
  run_id bigint,
  broken_at timestamptz not null,
  key text not null,
  holder text not null,
  broken_by text not null,
  why text not null
);
comment on table pgflow.lock_broken is 'Locks that an operator took from their holders';
comment on column pgflow.lock_broken.fence is 'The number of the time that it had been won';
comment on column pgflow.lock_broken.run_id is 'The run that held it; null = plain code';
comment on column pgflow.lock_broken.broken_at is 'Time at which it was taken away';
comment on column pgflow.lock_broken.key is 'Name of what was locked';
comment on column pgflow.lock_broken.holder is 'Key of the run, or the name that plain code gave';
comment on column pgflow.lock_broken.broken_by is 'Name of whoever took it away';
comment on column pgflow.lock_broken.why is 'Reason, in the words of whoever took it away';

alter table pgflow.lock set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.lock_wait set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.lock_nudge set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values
  ('l', 'lock_asked', false, 'ask_locks_: a run stands in the queue of a lock'),
  ('L', 'lock_won', true, 'ask_locks_, look: a run holds a lock from here on; its fence'),
  ('u', 'lock_released', true, 'settle_locks_, look: a lock was given back or lost, or the wait for it refused');

-- The lists of kinds grow by those above, and by the one of waits and mail for locks, whatever else they hold by now.
-- Not valid: the journal may be large, and what is in it has been checked by a narrower list.
do $$
declare
  units text := (select string_agg(quote_literal(k.kind::text), ', ' order by k.kind::text collate "C") from pgflow.unit_kind k);
  narrow record;
begin
  alter domain pgflow.unit_letter drop constraint unit_letter_check;
  execute format('alter domain pgflow.unit_letter add constraint unit_letter_check check (value in (%s)) not valid', units);
  for narrow in
    select c.conrelid::regclass as name, c.conname, (
      select string_agg(distinct quote_literal(m[1]), ', ')
      from regexp_matches(pg_get_constraintdef(c.oid) || '''l''::"char"', '''(.)''::"char"', 'g') m
    ) as kinds
    from pg_catalog.pg_constraint c
    where c.conrelid in ('pgflow.wait'::regclass, 'pgflow.signal'::regclass)
      and c.conname in ('wait_kind_check', 'signal_kind_check')
  loop
    execute format('alter table %s drop constraint %I', narrow.name, narrow.conname);
    execute format('alter table %s add constraint %I check (kind in (%s))', narrow.name, narrow.conname, narrow.kinds);
  end loop;
end $$;
comment on table pgflow.wait is 'What a parked run waits for: s = a signal of that name; c = the result of a child of one of these calls (one row for all); e = what became of an effect; g = the answer of a gate; l = a lock';
comment on column pgflow.signal.kind is 's = signal, c = result of a child, x = cancel, p = pause, r = resume, t = retry, e = what became of an effect, g = the verdict of a gate, l = what became of the wait for a lock';
