-- Beats of accepted effects: the outside has promised a sign of life at least so often, and a sweep notices when none comes.
--
-- A beat writes beat_at and details, which no index has, so that it is an update within the page. When to look is indexed, and
-- moves ahead only when a sweep has come to it.

create table pgflow.effect_beat (
  run_id bigint not null,
  call int not null,
  look_at timestamptz,
  beat_at timestamptz not null,
  timeout_seconds float8 not null check (timeout_seconds > 0),
  can_ask boolean not null,
  details json check (octet_length(details::text) <= 65536),
  primary key (run_id, call)
) with (fillfactor = 50);
-- squawk-ignore require-concurrent-index-creation
create index effect_beat_look_idx on pgflow.effect_beat (look_at);
comment on table pgflow.effect_beat is 'Last sign of life of each accepted effect whose counterparty has promised some; gone when the effect is closed';
comment on column pgflow.effect_beat.run_id is 'The run that owes the effect';
comment on column pgflow.effect_beat.call is 'Number of the effect''s call';
comment on column pgflow.effect_beat.look_at is 'When a sweep looks whether a beat has come; null = it has found none, and the run knows or has mail that says so';
comment on column pgflow.effect_beat.beat_at is 'When the last beat came, or the acceptance';
comment on column pgflow.effect_beat.timeout_seconds is 'Without a beat for so long, nobody knows what has become of the effect';
comment on column pgflow.effect_beat.can_ask is 'Whether the code has a way to ask the counterparty';
comment on column pgflow.effect_beat.details is 'What the last beat with details said of the progress; null = nothing';

alter table pgflow.effect_beat set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
