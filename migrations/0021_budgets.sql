-- Budgets: pools that runs draw on, what each has let in and what was spent, and the rows behind these sums.
--
-- The sums of a pool stand in one row for each unit and period, so that the bound is a constraint: whatever code is wrong,
-- the row cannot be written.

create domain pgflow.amounts as jsonb check (jsonb_typeof(value) = 'object' and octet_length(value::text) <= 4096);
comment on domain pgflow.amounts is 'Amounts by unit, such as {"usd": 0.04, "tokens": 12000}: an object of at most 4 KiB';

create table pgflow.pool (
  made_at timestamptz not null,
  revoked_at timestamptz,
  soft numeric check (soft > 0 and soft <= 1),
  is_hard boolean not null,
  name text primary key check (octet_length(name) between 1 and 255),
  pools text[] not null check (pools[1] = name and cardinality(pools) <= 8),
  per text check (per in ('hour', 'day', 'week', 'month', 'quarter', 'year')),
  tz text not null,
  limits pgflow.amounts not null,
  revoked_by text,
  revoked_why text,
  declared jsonb
);
comment on table pgflow.pool is 'Pools that runs draw on: what may be spent, by unit, in each period';
comment on column pgflow.pool.made_at is 'Time at which it was made';
comment on column pgflow.pool.revoked_at is 'Time since which it admits nothing; null = it does';
comment on column pgflow.pool.soft is 'Part of a limit from which on a run that draws is told; null = none is';
comment on column pgflow.pool.is_hard is 'True if no step at all of a run under it is licensed once it is used up or revoked';
comment on column pgflow.pool.name is 'Its name';
comment on column pgflow.pool.pools is 'Itself, its parent, the parent of that, and so on: what is drawn on it is drawn on all of them';
comment on column pgflow.pool.per is 'Calendar period after which it is full again; null = never';
comment on column pgflow.pool.tz is 'Time zone of that calendar';
comment on column pgflow.pool.limits is 'What may be spent in a period, by unit; a unit that is not named has no limit';
comment on column pgflow.pool.revoked_by is 'Who revoked it';
comment on column pgflow.pool.revoked_why is 'The reason given';
comment on column pgflow.pool.declared is 'What the code of an app last declared of it; null = no app declares it';

create table pgflow.spend (
  period_at timestamptz not null,
  soft_at timestamptz,
  pool text not null,
  unit text not null check (octet_length(unit) between 1 and 63),
  allowed numeric,
  granted numeric not null default 0,
  admitted numeric not null default 0,
  charged numeric not null default 0,
  returned numeric not null default 0,
  reserved numeric not null default 0,
  overrun numeric not null default 0,
  forgotten numeric not null default 0,
  primary key (pool, period_at, unit),
  constraint spend_is_bounded check (allowed is null or charged + reserved <= allowed),
  constraint spend_balances check (admitted = charged + returned + reserved),
  constraint spend_is_full_before_it_overruns check (overrun = 0 or charged + reserved = allowed),
  constraint spend_is_positive check (least(allowed, charged, returned, reserved, overrun, forgotten) >= 0)
) with (fillfactor = 50);
comment on table pgflow.spend is 'What a pool has let in and what was spent, by period and unit';
comment on column pgflow.spend.period_at is 'Beginning of the period; -infinity for a pool without';
comment on column pgflow.spend.soft_at is 'Time at which it passed its soft threshold; null = it has not';
comment on column pgflow.spend.pool is 'The pool';
comment on column pgflow.spend.unit is 'The unit: usd, tokens, calls, seconds or another';
comment on column pgflow.spend.allowed is 'What may be spent in this period; null = any amount';
comment on column pgflow.spend.granted is 'The part of it that was granted for this period alone';
comment on column pgflow.spend.admitted is 'What was ever let in: charged, returned and reserved together';
comment on column pgflow.spend.charged is 'What was spent, within what is allowed';
comment on column pgflow.spend.returned is 'What was reserved and not spent';
comment on column pgflow.spend.reserved is 'What open calls have reserved and not spent yet';
comment on column pgflow.spend.overrun is 'What was spent beyond what is allowed, since a call cost more than it had reserved';
comment on column pgflow.spend.forgotten is 'What was spent by runs whose history has been removed';

create table pgflow.reservation (
  run_id bigint not null,
  reserved_at timestamptz not null,
  call int not null,
  pools text[] not null,
  periods timestamptz[] not null,
  amounts pgflow.amounts not null,
  primary key (run_id, call)
);
comment on table pgflow.reservation is 'What open calls have reserved and not spent yet';
comment on column pgflow.reservation.run_id is 'The run';
comment on column pgflow.reservation.reserved_at is 'Time at which the call was admitted';
comment on column pgflow.reservation.call is 'Number of the call';
comment on column pgflow.reservation.pools is 'The pools that it draws on';
comment on column pgflow.reservation.periods is 'The period of each';
comment on column pgflow.reservation.amounts is 'What is left of it, by unit';

create table pgflow.charge (
  run_id bigint not null,
  charged_at timestamptz not null,
  seq int not null,
  call int not null,
  name text,
  model text,
  decision text,
  pools text[] not null,
  periods timestamptz[] not null,
  amounts pgflow.amounts not null,
  primary key (run_id, seq)
);
-- squawk-ignore require-concurrent-index-creation
create index charge_time_idx on pgflow.charge (charged_at);
comment on table pgflow.charge is 'What runs have spent, append only: a row beside each unit budget_charged';
comment on column pgflow.charge.run_id is 'The run';
comment on column pgflow.charge.charged_at is 'Time of the commit that recorded it';
comment on column pgflow.charge.seq is 'Place of its unit in the journal';
comment on column pgflow.charge.call is 'Number of the call whose body spent it, or of the call of charge() itself';
comment on column pgflow.charge.name is 'Name of that step; null = the code of the workflow spent it';
comment on column pgflow.charge.model is 'The model that was paid; null = none is named';
comment on column pgflow.charge.decision is 'Key of the decision that it was spent on, or that it rests on; null = none';
comment on column pgflow.charge.pools is 'The pools that it was drawn on; empty = the run has none';
comment on column pgflow.charge.periods is 'The period of each';
comment on column pgflow.charge.amounts is 'What was spent, by unit';

create table pgflow.pool_change (
  changed_at timestamptz not null,
  pool text not null,
  what text not null check (what in ('set', 'granted', 'revoked', 'restored')),
  said jsonb not null,
  why text,
  changed_by text not null
);
-- squawk-ignore require-concurrent-index-creation
create index pool_change_idx on pgflow.pool_change (pool, changed_at);
comment on table pgflow.pool_change is 'What was said of pools, append only: who allowed what, when and why';
comment on column pgflow.pool_change.changed_at is 'Time at which it was said';
comment on column pgflow.pool_change.pool is 'The pool';
comment on column pgflow.pool_change.what is 'set, granted, revoked or restored';
comment on column pgflow.pool_change.said is 'The limits and options that were set, or the amounts that were granted';
comment on column pgflow.pool_change.why is 'The reason given';
comment on column pgflow.pool_change.changed_by is 'Who said it';

alter table pgflow.spend set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.reservation set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

alter table pgflow.run add column pool text;
comment on column pgflow.run.pool is 'The pool that it draws on; null = none';
-- squawk-ignore require-concurrent-index-creation
create index run_pool_idx on pgflow.run (pool) where pool is not null;
create index pool_parent_idx on pgflow.pool ((pools[2])) where pools[2] is not null;

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values
  ('m', 'budget_admitted', false, 'commit_units: the pool has let a call through'),
  ('M', 'budget_charged', true, 'commit_units, fence_step: charge()'),
  ('q', 'budget_refused', true, 'commit_units: the pool has not let a call through');

-- Not valid: the journal may be large, and what is in it has been checked by a narrower list. The letters are those that
-- the table names, whichever migrations have added some.
do $$
begin
  alter domain pgflow.unit_letter drop constraint unit_letter_check;
  execute (
    select format('alter domain pgflow.unit_letter add constraint unit_letter_check check (value in (%s)) not valid',
      string_agg(quote_literal(k.kind::text), ', ' order by k.kind::text collate "C"))
    from pgflow.unit_kind k
  );
end $$;
