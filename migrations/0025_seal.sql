-- Seals over the journal, kept by workers once an operator has asked for them: sql/ledgers/seals.sql says what they are.
-- A database that was not asked to has one row here, and nothing is ever written or read beside the journal.

create table pgflow.seal (
  run_id bigint not null,
  round bigint not null,
  sealed_at timestamptz not null,
  dropped_at timestamptz,
  upto_seq int not null,
  hash bytea not null,
  outcome_hash bytea,
  primary key (run_id, round)
);
comment on table pgflow.seal is 'Hash chain of each run: one row for each round that found something new in its journal';
comment on column pgflow.seal.run_id is 'The run';
comment on column pgflow.seal.round is 'The round that sealed it';
comment on column pgflow.seal.sealed_at is 'Time of the round';
comment on column pgflow.seal.dropped_at is 'When the history of the run was removed; null = it is there';
comment on column pgflow.seal.upto_seq is 'The last unit that the chain covers; 0 = none';
comment on column pgflow.seal.hash is 'Hash of the seal before it, the units since, and the outcome';
comment on column pgflow.seal.outcome_hash is 'Hash of the outcome; null = the run was open, or not all of it is sealed yet';

create table pgflow.seal_round (
  round bigint primary key,
  sealed_at timestamptz not null,
  dropped_at timestamptz,
  day date not null,
  root bytea not null,
  runs bigint[] not null
);
comment on table pgflow.seal_round is 'Rounds of the sealer, numbered without a gap: the Merkle root over the seals of each';
comment on column pgflow.seal_round.round is 'Number of the round';
comment on column pgflow.seal_round.sealed_at is 'Its time, which never goes back';
comment on column pgflow.seal_round.dropped_at is 'When its seals were removed, with the history of all their runs; null = they are there';
comment on column pgflow.seal_round.day is 'Day of that time, in UTC';
comment on column pgflow.seal_round.root is 'Merkle root over its seals';
comment on column pgflow.seal_round.runs is 'The runs of its seals, in the order of the leaves';

create table pgflow.seal_day (
  day date primary key,
  first_round bigint not null,
  last_round bigint not null,
  closed_at timestamptz not null,
  root bytea not null,
  head bytea not null
);
comment on table pgflow.seal_day is 'Days that are over: the Merkle root over the roots of their rounds, chained from day to day';
comment on column pgflow.seal_day.day is 'The day, in UTC';
comment on column pgflow.seal_day.first_round is 'Its first round';
comment on column pgflow.seal_day.last_round is 'Its last round';
comment on column pgflow.seal_day.closed_at is 'When the root was computed';
comment on column pgflow.seal_day.root is 'Merkle root over the roots of its rounds';
comment on column pgflow.seal_day.head is 'Hash of the head of the day before, the day and its root';

create table pgflow.seal_pending (
  run_id bigint not null,
  ask bigint generated always as identity,
  primary key (run_id, ask)
);
comment on table pgflow.seal_pending is 'Runs that may still grow, in the order in which the sealer looks at them: one row of its own, and one for each who asked for another look';
comment on column pgflow.seal_pending.run_id is 'The run';
comment on column pgflow.seal_pending.ask is 'Number of the row: no two ask for the same, so nobody waits for anybody, and who asks while the sealer looks is not forgotten';
alter table pgflow.seal_pending set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);

create table pgflow.seal_state (
  is_the_only boolean primary key default true check (is_the_only),
  is_on boolean not null default false,
  passed_run_id bigint not null default 0,
  next_run_id bigint,
  waits_for text[],
  looked_upto bigint not null default 0,
  cycle_began_at timestamptz,
  next_look_at timestamptz,
  said_by text,
  said_at timestamptz
) with (fillfactor = 50);
comment on table pgflow.seal_state is 'Progress of the sealer: one row';
comment on column pgflow.seal_state.is_the_only is 'True: there is one row';
comment on column pgflow.seal_state.is_on is 'True if workers are to seal';
comment on column pgflow.seal_state.passed_run_id is 'Every run up to this number is sealed, or pending';
comment on column pgflow.seal_state.next_run_id is 'How far it goes next, once nobody can start a run with such a number any more; null = not known';
comment on column pgflow.seal_state.waits_for is 'Transactions that may yet start one';
comment on column pgflow.seal_state.looked_upto is 'The pending run that was looked at last';
comment on column pgflow.seal_state.cycle_began_at is 'When it last began with the first of those';
comment on column pgflow.seal_state.next_look_at is 'When the next round is due';
comment on column pgflow.seal_state.said_by is 'Who switched sealing on or off; null = nobody';
comment on column pgflow.seal_state.said_at is 'When';
insert into pgflow.seal_state default values;

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values ('Z', 'redacted', false, 'redact: a person had a value of the run replaced by its hash');

-- The list of kinds grows by that, whatever else it holds by now.
-- Not valid: the journal may be large, and what is in it has been checked by a narrower list.
do $$
begin
  alter domain pgflow.unit_letter drop constraint unit_letter_check;
  execute format('alter domain pgflow.unit_letter add constraint unit_letter_check check (value in (%s)) not valid',
    (select string_agg(quote_literal(k.kind::text), ', ' order by k.kind::text collate "C") from pgflow.unit_kind k));
end $$;
