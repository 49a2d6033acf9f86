-- The outbox: events that are published in the writer's own transaction, and relays that bring them somewhere.
--
-- An event has a number of one sequence, drawn once its transaction has a number itself. A relay has a cursor: every
-- event up to it is delivered, or kept as a delivery of its own that waits for another try or is dead. So a relay is a
-- row, and what it costs to publish does not depend on how many there are.

create sequence pgflow.event_id_seq;
comment on sequence pgflow.event_id_seq is 'Numbers the events; a transaction draws from it only once it has a number itself';

create table pgflow.event (
  event_id bigint not null,
  xid xid8 not null,
  at timestamptz not null,
  run_id bigint,
  topic text not null check (octet_length(topic) between 1 and 255),
  key text check (octet_length(key) between 1 and 255),
  payload json not null check (octet_length(payload::text) <= 1048576),
  primary key (event_id)
) partition by range (event_id);
comment on table pgflow.event is 'Events that were published, in partitions by their numbers; append only, whole partitions go';
comment on column pgflow.event.event_id is 'The number of the event: relays bring events in this order';
comment on column pgflow.event.xid is 'Its transaction: a run that waits sees it if that committed after the wait began';
comment on column pgflow.event.at is 'Time of publishing';
comment on column pgflow.event.run_id is 'The run that has published it; null = somebody else';
comment on column pgflow.event.topic is 'Topic, to which relays listen';
comment on column pgflow.event.key is 'Events of one key come in their order; null = any order will do';
comment on column pgflow.event.payload is 'Content, as the encoder wrote it';
-- squawk-ignore require-concurrent-index-creation
create index event_topic_idx on pgflow.event (topic, event_id);

create table pgflow.relay (
  event_id bigint not null default 0,
  horizon bigint not null default 0,
  seen_id bigint,
  seen_xid xid8,
  token bigint,
  leased_until timestamptz,
  open_until timestamptz,
  paused_at timestamptz,
  declared_at timestamptz not null,
  delivered bigint not null default 0,
  failures int not null default 0,
  name text primary key check (octet_length(name) between 1 and 100),
  target text not null,
  error text,
  topics text[] not null,
  check ((seen_id is null) = (seen_xid is null)),
  check ((token is null) = (leased_until is null))
) with (fillfactor = 50);
comment on table pgflow.relay is 'Relays: who brings which events where, and how far each has come';
comment on column pgflow.relay.event_id is 'Its cursor: every event up to this number was delivered, or is a delivery';
comment on column pgflow.relay.horizon is 'No event up to this number can appear any more: it goes no further';
comment on column pgflow.relay.seen_id is 'The next horizon: the newest number when it last looked';
comment on column pgflow.relay.seen_xid is 'It is one once every transaction before this one has ended';
comment on column pgflow.relay.token is 'Fence of the worker that delivers for it; null = none does';
comment on column pgflow.relay.leased_until is 'Time from which another worker may';
comment on column pgflow.relay.open_until is 'The circuit is open until then: its target has failed again and again';
comment on column pgflow.relay.paused_at is 'Time at which an operator has paused it';
comment on column pgflow.relay.declared_at is 'Time at which it was declared first';
comment on column pgflow.relay.delivered is 'Number of events that it has delivered';
comment on column pgflow.relay.failures is 'Deliveries that failed since one last succeeded';
comment on column pgflow.relay.name is 'Its name';
comment on column pgflow.relay.target is 'Target of its events, in words';
comment on column pgflow.relay.error is 'The last failure; null = none since the last success';
comment on column pgflow.relay.topics is 'Topics that it listens to';

create table pgflow.delivery (
  event_id bigint not null,
  run_id bigint,
  at timestamptz not null,
  due_at timestamptz not null,
  attempts int not null,
  is_dead boolean not null,
  relay text not null,
  topic text not null,
  key text,
  error text,
  payload json not null,
  primary key (relay, event_id)
);
comment on table pgflow.delivery is 'Events that a relay could not deliver at once: they wait for another try, or are dead';
comment on column pgflow.delivery.event_id is 'The number of the event';
comment on column pgflow.delivery.run_id is 'The run that has published it; null = somebody else';
comment on column pgflow.delivery.at is 'Time of publishing';
comment on column pgflow.delivery.due_at is 'Time of the next try; of a dead one, when it died';
comment on column pgflow.delivery.attempts is 'Number of tries so far; 0 = it stands behind another of its key';
comment on column pgflow.delivery.is_dead is 'True if it is not tried any more, until somebody says so';
comment on column pgflow.delivery.relay is 'Name of the relay';
comment on column pgflow.delivery.topic is 'Topic of the event';
comment on column pgflow.delivery.key is 'Key of the event';
comment on column pgflow.delivery.error is 'Failure of the last try';
comment on column pgflow.delivery.payload is 'Content of the event: it stays when the event is removed';
-- squawk-ignore require-concurrent-index-creation
create index delivery_due_idx on pgflow.delivery (relay, due_at) where not is_dead;
-- squawk-ignore require-concurrent-index-creation
create index delivery_key_idx on pgflow.delivery (relay, key, event_id) where not is_dead;
-- squawk-ignore require-concurrent-index-creation
create index delivery_dead_idx on pgflow.delivery (relay, event_id) where is_dead;

create table pgflow.event_wait (
  chain_id bigint not null,
  event_id bigint not null,
  value bigint not null,
  seen_id bigint,
  is_current boolean not null,
  name text not null,
  topic text not null,
  key text,
  path text[] not null,
  match jsonb,
  seen pg_snapshot,
  primary key (chain_id, name),
  check ((seen_id is null) = (seen is null))
);
comment on table pgflow.event_wait is 'Runs that wait for an event, until one is in their mailbox';
comment on column pgflow.event_wait.chain_id is 'The chain of the run';
comment on column pgflow.event_wait.event_id is 'Every event up to this number was compared, or is none of those that it waits for';
comment on column pgflow.event_wait.value is 'Hash of what the event must have at the path; 0 where that is empty';
comment on column pgflow.event_wait.seen_id is 'The newest number when the wait began: greater ones are of later events';
comment on column pgflow.event_wait.is_current is 'True once it is compared with each event that the cursor passes';
comment on column pgflow.event_wait.name is 'Name of the message that brings the event';
comment on column pgflow.event_wait.topic is 'Topic of the event';
comment on column pgflow.event_wait.key is 'Key of the event; null = any';
comment on column pgflow.event_wait.path is 'Path in the payload of the first constant of the match: by that it is found';
comment on column pgflow.event_wait.match is 'Content that the payload must have; null = anything';
comment on column pgflow.event_wait.seen is 'Snapshot of the moment when it began: an event that was committed by then is none for it; null = it goes by numbers alone';
-- squawk-ignore require-concurrent-index-creation
create index event_wait_slot_idx on pgflow.event_wait (topic, path, value) where is_current;
-- squawk-ignore require-concurrent-index-creation
create index event_wait_behind_idx on pgflow.event_wait (event_id) where not is_current;

create table pgflow.event_cursor (
  event_id bigint not null default 0,
  horizon bigint not null default 0,
  seen_id bigint,
  seen_xid xid8,
  is_only boolean primary key default true check (is_only),
  check ((seen_id is null) = (seen_xid is null))
);
comment on table pgflow.event_cursor is 'Cursor of the sweep that compares events with the runs that wait for some; one row';
comment on column pgflow.event_cursor.event_id is 'Every event up to this number was compared';
comment on column pgflow.event_cursor.horizon is 'No event up to this number can appear any more: it goes no further';
comment on column pgflow.event_cursor.seen_id is 'The next horizon: the newest number when it was last looked';
comment on column pgflow.event_cursor.seen_xid is 'It is one once every transaction before this one has ended';
comment on column pgflow.event_cursor.is_only is 'True: there is one row';
insert into pgflow.event_cursor default values;

alter table pgflow.relay set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.delivery set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.event_wait set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
