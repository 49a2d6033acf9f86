schema pgflow, owner pgflow_owner
  grant usage to pgflow_approver
  grant usage to pgflow_auditor
  grant usage to pgflow_client
  grant usage to pgflow_declarer
  grant usage to pgflow_operator
  grant usage to pgflow_speaker
  grant usage to pgflow_tenant
  grant usage to pgflow_worker

sequence pgflow.batch_member_n_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.blob_blob_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.blob_use_use_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.code_code_id_seq, owner pgflow_owner
  as integer start 1 increment 1 cache 1

sequence pgflow.code_signal_code_signal_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.dropped_history_dropped_history_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.entity_history_history_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.entity_mail_mail_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.event_id_seq, owner pgflow_owner
  -- Numbers the events; a transaction draws from it only once it has a number itself
  as bigint start 1 increment 1 cache 1

sequence pgflow.evidence_evidence_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.flow_flow_id_seq, owner pgflow_owner
  as integer start 1 increment 1 cache 1

sequence pgflow.lane_lane_id_seq, owner pgflow_owner
  as integer start 1 increment 1 cache 1

sequence pgflow.lock_fence_seq, owner pgflow_owner
  -- Numbers the times that a lock was won
  as bigint start 1 increment 1 cache 1

sequence pgflow.lock_nudge_nudge_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.lock_wait_ticket_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.loss_loss_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.nudge_id_seq, owner pgflow_owner
  -- Numbers nudges
  as bigint start 1 increment 1 cache 1

sequence pgflow.pool_change_pool_change_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.put_back_seq, owner pgflow_owner
  -- Numbers messages that are put back into a mailbox: below zero, and lower each time
  as bigint start -1 increment -1 cache 1

sequence pgflow.queue_change_queue_change_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.run_id_seq, owner pgflow_owner
  -- Numbers runs; a chain is numbered by its first run
  as bigint start 1 increment 1 cache 1

sequence pgflow.schedule_change_change_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.seal_pending_ask_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.signal_signal_id_seq, owner pgflow_owner
  as bigint start 1 increment 1 cache 1

sequence pgflow.worker_worker_id_seq, owner pgflow_owner
  as integer start 1 increment 1 cache 1

table pgflow.batch, owner pgflow_owner
  -- Runs that begin once all members of their batch have ended
  with fillfactor=70
  batch_id bigint not null -- The chain that begins then
  upto bigint not null default 0 -- Number of the member up to which all have ended
  opened_at timestamp with time zone not null -- Time at which its first members were named
  begun_at timestamp with time zone -- Time at which all had ended, or the run had been cancelled; null = not yet
  is_whole boolean not null default false -- True once all members are named
  constraint batch_pkey PRIMARY KEY (batch_id)
  CREATE INDEX batch_open_idx ON pgflow.batch USING btree (batch_id) WHERE (begun_at IS NULL)

table pgflow.batch_failure, owner pgflow_owner
  -- Runs that begin with the first failure in their batch
  with fillfactor=70
  batch_id bigint not null -- The batch
  looked bigint not null default 0 -- Number of the member up to which the last look has come; it goes round and round
  fired_at timestamp with time zone -- Time at which the first failure was seen; null = not yet
  member_id bigint -- The member that had failed
  started_key text -- Key of the run that has begun with it
  trouble text -- SQLSTATE with which its start was refused
  workflow text not null -- Workflow of that run
  queue text not null -- Its queue
  input json not null -- Its input
  constraint batch_failure_pkey PRIMARY KEY (batch_id)

table pgflow.batch_member, owner pgflow_owner
  -- Members of batches, kept as long as the history of the run that they are waited for by
  batch_id bigint not null -- The chain that waits for them
  n bigint not null generated always as identity -- Number of the member, in the order in which they were named
  chain_id bigint not null -- The member
  constraint batch_member_batch_id_chain_id_key UNIQUE (batch_id, chain_id)
  constraint batch_member_pkey PRIMARY KEY (batch_id, n)

table pgflow.blob, owner pgflow_owner
  -- Large values: each content once in its tenant, for as long as a run names it
  blob_id bigint not null generated always as identity -- Number of the blob
  size_bytes bigint -- Its length; null until it is complete
  stored_at timestamp with time zone not null -- Time at which it was begun
  writer xid8 not null -- Transaction that stores it: no other adds to it
  tenant pgflow.tenant_name not null default ''::text -- Tenant of the runs that may name it
  is_loose boolean not null default true -- Whether perhaps no run names it: the next sweep looks
  digest bytea -- SHA-256 of the SHA-256 of its chunks, one after the other; null until it is complete
  constraint blob_check CHECK (((digest IS NULL) = (size_bytes IS NULL)))
  constraint blob_digest_check CHECK ((octet_length(digest) = 32))
  constraint blob_pkey PRIMARY KEY (blob_id)
  constraint blob_size_bytes_check CHECK ((size_bytes >= 0))
  constraint blob_tenant_digest_key UNIQUE (tenant, digest)
  CREATE INDEX blob_loose_idx ON pgflow.blob USING btree (blob_id) WHERE is_loose

table pgflow.blob_chunk, owner pgflow_owner
  -- Content of the blobs: all chunks but the last have 256 KiB
  blob_id bigint not null -- The blob
  n integer not null -- Number of the chunk, from 0
  hash bytea not null -- SHA-256 of the chunk
  data bytea not null -- The bytes
  constraint blob_chunk_data_check CHECK (((octet_length(data) >= 1) AND (octet_length(data) <= 262144)))
  constraint blob_chunk_hash_check CHECK ((octet_length(hash) = 32))
  constraint blob_chunk_n_check CHECK ((n >= 0))
  constraint blob_chunk_pkey PRIMARY KEY (blob_id, n)

table pgflow.blob_use, owner pgflow_owner
  -- Which runs name which blobs; the same may be said twice, so that no writer waits for another
  use_id bigint not null generated always as identity -- Number of the row
  blob_id bigint not null -- The blob
  run_id bigint not null -- The run, or the first of the chain to which a message was sent
  constraint blob_use_pkey PRIMARY KEY (use_id)
  CREATE INDEX blob_use_blob_idx ON pgflow.blob_use USING btree (blob_id, run_id)
  CREATE INDEX blob_use_run_idx ON pgflow.blob_use USING btree (run_id)

table pgflow.carried, owner pgflow_owner
  -- What a dropped part of a journal knew of what it did, for the run that took its place: results that are handed to it where it asks for the same, keys of steps that did not complete, and effects that it must take back first
  run_id bigint not null -- The run that may ask for it, or must take it back
  args_hash bigint not null -- Hash of the arguments with which the step or effect was called; 0 for a child
  seq integer not null -- Place in the journal that was dropped; of an effect to be taken back, the place of its intent there; of a child, the place of its start in this run's journal
  call integer not null -- Number that the call has in the journal of this run, if it is there already; else one that keeps these rows apart
  is_done boolean not null -- True: it had completed, and its result is carried. False: a step has its key, under which it runs again; an effect that must be taken back is open
  what text not null default 'step'::text -- step (or transaction), effect and child: handed over where the run asks for the same; undo: an effect to be taken back before the run goes on
  name text not null -- Name of the step, effect or workflow
  key text not null -- Idempotency key under which its body was started; for a transaction, the number of the run and of the call; for a child, its key
  payload json -- Value that it returned; null where it is not done
  request json -- Arguments of an effect, by name
  note jsonb -- Further facts on it: the place where it was done, its risk, whether it was accepted, which effect it takes back, the chain of a child
  constraint carried_key_check CHECK ((octet_length(key) <= 1024))
  constraint carried_name_check CHECK ((octet_length(name) <= 255))
  constraint carried_pkey PRIMARY KEY (run_id, seq, call)
  constraint carried_what_check CHECK ((what = ANY (ARRAY['step'::text, 'effect'::text, 'child'::text, 'undo'::text])))
  CREATE TRIGGER name_blobs AFTER INSERT ON pgflow.carried FOR EACH ROW WHEN ((strpos(concat(new.payload, new.request), '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('carried')

table pgflow.charge, owner pgflow_owner
  -- What runs have spent, append only: a row beside each unit budget_charged
  run_id bigint not null -- The run
  charged_at timestamp with time zone not null -- Time of the commit that recorded it
  seq integer not null -- Place of its unit in the journal
  call integer not null -- Number of the call whose body spent it, or of the call of charge() itself
  name text -- Name of that step; null = the code of the workflow spent it
  model text -- The model that was paid; null = none is named
  decision text -- Key of the decision that it was spent on, or that it rests on; null = none
  pools text[] not null -- The pools that it was drawn on; empty = the run has none
  periods timestamp with time zone[] not null -- The period of each
  amounts pgflow.amounts not null -- What was spent, by unit
  constraint charge_pkey PRIMARY KEY (run_id, seq)
  CREATE INDEX charge_time_idx ON pgflow.charge USING btree (charged_at)

table pgflow.code, owner pgflow_owner
  -- What code workers have had of each workflow, and when: written by workers as they come and go, never by a run
  code_id integer not null generated always as identity -- The number of this code
  first_at timestamp with time zone not null -- Time at which the first worker came that had it
  last_at timestamp with time zone not null -- Time at which a worker that had it last came or went; while one is there it does not count
  is_pinned boolean not null -- True if runs that are started with this code stay with its version
  workflow text not null -- Name of the workflow
  version text not null -- Its version: the one that it was given, or the hash of the code
  code_hash text not null -- Hash of the module that it is written in
  alias_of text -- The name that the workflow has in this code, where the name here is an old one; null = it is its name
  defaults json -- Values of the parameters that a start leaves out; null = there are none, or the app has a codec
  parameters jsonb -- Names that its input may have, as a shape; null = not declared
  constraint code_alias_of_check CHECK (((octet_length(alias_of) >= 1) AND (octet_length(alias_of) <= 255)))
  constraint code_code_hash_check CHECK (((octet_length(code_hash) >= 1) AND (octet_length(code_hash) <= 255)))
  constraint code_pkey PRIMARY KEY (code_id)
  constraint code_version_check CHECK (((octet_length(version) >= 1) AND (octet_length(version) <= 255)))
  constraint code_workflow_check CHECK (((octet_length(workflow) >= 1) AND (octet_length(workflow) <= 255)))
  constraint code_workflow_version_code_hash_key UNIQUE (workflow, version, code_hash)

table pgflow.code_patch, owner pgflow_owner
  -- Which patches are written in that code
  code_id integer not null -- The code
  is_deprecated boolean not null -- True if only deprecate_patch() names it
  patch text not null -- Name of the change
  constraint code_patch_patch_check CHECK (((octet_length(patch) >= 1) AND (octet_length(patch) <= 255)))
  constraint code_patch_pkey PRIMARY KEY (code_id, patch)

table pgflow.code_signal, owner pgflow_owner
  -- What payloads the signals have that code waits for, as far as it declares them
  code_id integer not null -- The code
  signal text not null -- Name of the signal
  shape jsonb not null -- Payloads that the code certainly refuses, see sql/core/shape.sql
  code_signal_id bigint not null generated always as identity -- Number of the row
  constraint code_signal_pkey PRIMARY KEY (code_signal_id)
  constraint code_signal_signal_check CHECK (((octet_length(signal) >= 1) AND (octet_length(signal) <= 255)))
  CREATE INDEX code_signal_code_idx ON pgflow.code_signal USING btree (code_id)
  CREATE UNIQUE INDEX code_signal_key ON pgflow.code_signal USING btree (signal, code_id, md5((shape)::text))

table pgflow.confirmation, owner pgflow_owner
  -- What became of effects that were accepted, by the reference of the counterparty; kept as long as the history of the run
  chain_id bigint not null -- The chain whose effect it is
  said_at timestamp with time zone not null -- Time at which it was said
  ref text not null -- Reference of the counterparty
  verdict text not null -- confirmed or failed
  said_by text -- Name of whoever said so; null = its own settle function
  constraint confirmation_pkey PRIMARY KEY (ref)
  constraint confirmation_ref_check CHECK (((octet_length(ref) >= 1) AND (octet_length(ref) <= 255)))
  constraint confirmation_verdict_check CHECK ((verdict = ANY (ARRAY['confirmed'::text, 'failed'::text])))
  CREATE INDEX confirmation_chain_idx ON pgflow.confirmation USING btree (chain_id)

table pgflow.deadline, owner pgflow_owner
  -- Open runs that must be over by a certain time
  run_id bigint not null -- The open run
  due_at timestamp with time zone not null -- Time at which it is cancelled if it has not ended
  constraint deadline_pkey PRIMARY KEY (run_id)
  CREATE INDEX deadline_due_idx ON pgflow.deadline USING btree (due_at)

table pgflow.delivery, owner pgflow_owner
  -- Events that a relay could not deliver at once: they wait for another try, or are dead
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  event_id bigint not null -- The number of the event
  run_id bigint -- The run that has published it; null = somebody else
  at timestamp with time zone not null -- Time of publishing
  due_at timestamp with time zone not null -- Time of the next try; of a dead one, when it died
  attempts integer not null -- Number of tries so far; 0 = it stands behind another of its key
  is_dead boolean not null -- True if it is not tried any more, until somebody says so
  relay text not null -- Name of the relay
  topic text not null -- Topic of the event
  key text -- Key of the event
  error text -- Failure of the last try
  payload json not null -- Content of the event: it stays when the event is removed
  constraint delivery_pkey PRIMARY KEY (relay, event_id)
  CREATE INDEX delivery_dead_idx ON pgflow.delivery USING btree (relay, event_id) WHERE is_dead
  CREATE INDEX delivery_due_idx ON pgflow.delivery USING btree (relay, due_at) WHERE (NOT is_dead)
  CREATE INDEX delivery_key_idx ON pgflow.delivery USING btree (relay, key, event_id) WHERE (NOT is_dead)

table pgflow.document, owner pgflow_owner
  -- Values under paths: what integrations and applications keep beside their runs
  created_at timestamp with time zone not null -- Time at which the path was written first
  updated_at timestamp with time zone not null -- Time of the last write
  expires_at timestamp with time zone -- Time from which nobody sees it any more; null = never
  ttl_ms bigint -- Milliseconds from a write, or a read that says so, to that time
  collection text not null -- Name of the collection
  path text[] not null -- Names of folders, the outermost first, and a name in the last one
  value json not null -- Value, as the encoder wrote it
  constraint document_check CHECK (((ttl_ms IS NULL) = (expires_at IS NULL)))
  constraint document_collection_check CHECK (((octet_length(collection) >= 1) AND (octet_length(collection) <= 100)))
  constraint document_path_check CHECK ((((cardinality(path) >= 1) AND (cardinality(path) <= 50)) AND (array_position(path, NULL::text) IS NULL)))
  constraint document_pkey PRIMARY KEY (collection, path)
  constraint document_ttl_ms_check CHECK ((ttl_ms > 0))
  CREATE INDEX document_expires_idx ON pgflow.document USING btree (expires_at) WHERE (expires_at IS NOT NULL)

table pgflow.draft, owner pgflow_owner
  -- Values that bodies of steps have emitted and whose steps have not completed; gone with the next try, the next step that emits, or the run
  run_id bigint not null -- The run whose step emits
  call integer not null -- Number of the step's call
  n integer not null -- Which value of this try it is, from 0
  after_seq integer not null -- The last unit of the run when it was emitted: a later one of the same call ends the try, and this value with it
  try text not null -- Which try it is of
  stream text not null -- Name of the stream
  value pgflow.run_value not null -- The value
  constraint draft_pkey PRIMARY KEY (run_id, call, n)
  constraint draft_stream_check CHECK (((octet_length(stream) >= 1) AND (octet_length(stream) <= 255)))
  constraint draft_try_check CHECK ((octet_length(try) <= 64))

table pgflow.dropped_history, owner pgflow_owner
  -- What of the history has been removed, by whom: one row a batch
  dropped_history_id bigint not null generated always as identity -- Number of the removal
  dropped_at timestamp with time zone not null -- Time of removal
  ended_before timestamp with time zone not null -- The runs had ended before this time
  runs integer not null -- Number of runs removed
  dropped_by text not null -- Name of the session that removed them
  why text -- Name of the rule of retention that it went by, or the reason why a subject was forgotten; null = none was given
  constraint dropped_history_pkey PRIMARY KEY (dropped_history_id)

table pgflow.effect_beat, owner pgflow_owner
  -- Last sign of life of each accepted effect whose counterparty has promised some; gone when the effect is closed
  with fillfactor=50, autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  run_id bigint not null -- The run that owes the effect
  call integer not null -- Number of the effect's call
  look_at timestamp with time zone -- When a sweep looks whether a beat has come; null = it has found none, and the run knows or has mail that says so
  beat_at timestamp with time zone not null -- When the last beat came, or the acceptance
  timeout_seconds double precision not null -- Without a beat for so long, nobody knows what has become of the effect
  can_ask boolean not null -- Whether the code has a way to ask the counterparty
  details json -- What the last beat with details said of the progress; null = nothing
  constraint effect_beat_details_check CHECK ((octet_length((details)::text) <= 65536))
  constraint effect_beat_pkey PRIMARY KEY (run_id, call)
  constraint effect_beat_timeout_seconds_check CHECK ((timeout_seconds > (0)::double precision))
  CREATE INDEX effect_beat_look_idx ON pgflow.effect_beat USING btree (look_at)

table pgflow.entity, owner pgflow_owner
  -- State of entities, by name and key
  with fillfactor=50, autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  version bigint not null -- Number of changes so far; 0 = it has its first state still
  updated_at timestamp with time zone not null -- Time of the last change
  name text not null -- Name of the kind of entity
  key text not null -- Key of this one
  state json -- Its state, as the encoder wrote it; null = its first, which only the code knows
  constraint entity_key_check CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255)))
  constraint entity_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
  constraint entity_pkey PRIMARY KEY (name, key)
  constraint entity_state_check CHECK ((octet_length((state)::text) <= 1048576))
  constraint entity_version_check CHECK ((version >= 0))

table pgflow.entity_history, owner pgflow_owner
  -- Every update of an entity, with its verdict; append only
  history_id bigint not null generated always as identity -- Numbers the updates in the order in which they were made, of each entity
  version bigint not null -- Version of the entity after it
  at timestamp with time zone not null -- Time of the update
  run_id bigint -- The run whose update it is; null = of somebody else
  mail_id bigint -- The number of the update, if it came by the mailbox
  call integer -- Number of the call of that run
  name text not null -- Name of the kind of entity
  key text not null -- Key of the entity
  update text not null -- Name of the update
  said_by text not null -- Key of the run, or the role or name of whoever made it
  idempotency_key text -- Under which it is made once; null = none was given
  args json not null -- Its arguments by their names
  verdict json -- Value that the update returned; null = it was refused
  error json -- Reason for which an update by the mailbox was refused; null = it was not
  state json -- The state after it; null = it changed nothing
  constraint entity_history_args_check CHECK ((octet_length((args)::text) <= 1048576))
  constraint entity_history_check CHECK (((run_id IS NULL) = (call IS NULL)))
  constraint entity_history_check1 CHECK (((verdict IS NULL) = (error IS NOT NULL)))
  constraint entity_history_error_check CHECK ((octet_length((error)::text) <= 65536))
  constraint entity_history_idempotency_key_check CHECK (((octet_length(idempotency_key) >= 1) AND (octet_length(idempotency_key) <= 255)))
  constraint entity_history_pkey PRIMARY KEY (history_id)
  constraint entity_history_state_check CHECK ((octet_length((state)::text) <= 1048576))
  constraint entity_history_update_check CHECK (((octet_length(update) >= 1) AND (octet_length(update) <= 255)))
  constraint entity_history_verdict_check CHECK ((octet_length((verdict)::text) <= 1048576))
  CREATE UNIQUE INDEX entity_history_call_key ON pgflow.entity_history USING btree (run_id, call) WHERE (run_id IS NOT NULL)
  CREATE INDEX entity_history_key_idx ON pgflow.entity_history USING btree (name, key, history_id)
  CREATE UNIQUE INDEX entity_history_mail_key ON pgflow.entity_history USING btree (mail_id) WHERE (mail_id IS NOT NULL)
  CREATE UNIQUE INDEX entity_history_once_key ON pgflow.entity_history USING btree (name, key, idempotency_key) WHERE (idempotency_key IS NOT NULL)

table pgflow.entity_mail, owner pgflow_owner
  -- Updates that were asked for from SQL; a worker whose code has the entity makes them, of each entity in their order
  with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  mail_id bigint not null generated always as identity -- The number of the update: they are made in this order
  sent_at timestamp with time zone not null -- Time of sending
  expect bigint -- Version that the entity must have; null = any
  name text not null -- Name of the kind of entity
  key text not null -- Key of the entity
  update text not null -- Name of the update
  sent_by text not null -- Sender: a role, or the name that the caller gave
  idempotency_key text -- Under which it is made once; null = none was given
  args json not null -- Its arguments by their names
  constraint entity_mail_args_check CHECK ((octet_length((args)::text) <= 1048576))
  constraint entity_mail_idempotency_key_check CHECK (((octet_length(idempotency_key) >= 1) AND (octet_length(idempotency_key) <= 255)))
  constraint entity_mail_key_check CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255)))
  constraint entity_mail_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
  constraint entity_mail_pkey PRIMARY KEY (mail_id)
  constraint entity_mail_update_check CHECK (((octet_length(update) >= 1) AND (octet_length(update) <= 255)))
  CREATE INDEX entity_mail_key_idx ON pgflow.entity_mail USING btree (name, key, mail_id)

table pgflow.event, owner pgflow_owner
  -- Events that were published, in partitions by their numbers; append only, whole partitions go
  partition by RANGE (event_id)
  event_id bigint not null -- The number of the event: relays bring events in this order
  xid xid8 not null -- Its transaction: a run that waits sees it if that committed after the wait began
  at timestamp with time zone not null -- Time of publishing
  run_id bigint -- The run that has published it; null = somebody else
  topic text not null -- Topic, to which relays listen
  key text -- Events of one key come in their order; null = any order will do
  payload json not null -- Content, as the encoder wrote it
  constraint event_key_check CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255)))
  constraint event_payload_check CHECK ((octet_length((payload)::text) <= 1048576))
  constraint event_pkey PRIMARY KEY (event_id)
  constraint event_topic_check CHECK (((octet_length(topic) >= 1) AND (octet_length(topic) <= 255)))
  CREATE INDEX event_topic_idx ON ONLY pgflow.event USING btree (topic, event_id)

table pgflow.event_0, owner pgflow_owner
  with autovacuum_vacuum_insert_scale_factor=0.1
  partition of pgflow.event FOR VALUES FROM ('0') TO ('1000000')

table pgflow.event_1, owner pgflow_owner
  with autovacuum_vacuum_insert_scale_factor=0.1
  partition of pgflow.event FOR VALUES FROM ('1000000') TO ('2000000')

table pgflow.event_2, owner pgflow_owner
  with autovacuum_vacuum_insert_scale_factor=0.1
  partition of pgflow.event FOR VALUES FROM ('2000000') TO ('3000000')

table pgflow.event_3, owner pgflow_owner
  with autovacuum_vacuum_insert_scale_factor=0.1
  partition of pgflow.event FOR VALUES FROM ('3000000') TO ('4000000')

table pgflow.event_cursor, owner pgflow_owner
  -- Cursor of the sweep that compares events with the runs that wait for some; one row
  event_id bigint not null default 0 -- Every event up to this number was compared
  horizon bigint not null default 0 -- No event up to this number can appear any more: it goes no further
  seen_id bigint -- The next horizon: the newest number when it was last looked
  seen_xid xid8 -- It is one once every transaction before this one has ended
  is_only boolean not null default true -- True: there is one row
  constraint event_cursor_check CHECK (((seen_id IS NULL) = (seen_xid IS NULL)))
  constraint event_cursor_is_only_check CHECK (is_only)
  constraint event_cursor_pkey PRIMARY KEY (is_only)

table pgflow.event_wait, owner pgflow_owner
  -- Runs that wait for an event, until one is in their mailbox
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  chain_id bigint not null -- The chain of the run
  event_id bigint not null -- Every event up to this number was compared, or is none of those that it waits for
  value bigint not null -- Hash of what the event must have at the path; 0 where that is empty
  seen_id bigint -- The newest number when the wait began: greater ones are of later events
  is_current boolean not null -- True once it is compared with each event that the cursor passes
  name text not null -- Name of the message that brings the event
  topic text not null -- Topic of the event
  key text -- Key of the event; null = any
  path text[] not null -- Path in the payload of the first constant of the match: by that it is found
  match jsonb -- Content that the payload must have; null = anything
  seen pg_snapshot -- Snapshot of the moment when it began: an event that was committed by then is none for it; null = it goes by numbers alone
  constraint event_wait_check CHECK (((seen_id IS NULL) = (seen IS NULL)))
  constraint event_wait_pkey PRIMARY KEY (chain_id, name)
  CREATE INDEX event_wait_behind_idx ON pgflow.event_wait USING btree (event_id) WHERE (NOT is_current)
  CREATE INDEX event_wait_slot_idx ON pgflow.event_wait USING btree (topic, path, value) WHERE is_current

table pgflow.evidence, owner pgflow_owner
  -- What people said and did beside the journal: one row for each row that must stay as it is, with its hash
  evidence_id bigint not null generated always as identity -- Number of the row
  round bigint -- The round that sealed it; null = none yet
  run_id bigint -- The run that it belongs to, with whose history it goes; null = none
  noted_at timestamp with time zone not null -- Time of writing
  dropped_at timestamp with time zone -- When the history of the run was removed; null = it is there
  kind text not null -- Kind of row, see pgflow.evidence_kinds_()
  key text not null -- Key of that row, as a JSON array
  hash bytea not null -- Hash of that row
  constraint evidence_kind_key_key UNIQUE (kind, key)
  constraint evidence_pkey PRIMARY KEY (evidence_id)
  CREATE INDEX evidence_new_idx ON pgflow.evidence USING btree (evidence_id) WHERE (round IS NULL)
  CREATE INDEX evidence_round_idx ON pgflow.evidence USING btree (round, evidence_id) WHERE (round IS NOT NULL)
  CREATE INDEX evidence_run_idx ON pgflow.evidence USING btree (run_id, evidence_id) WHERE (run_id IS NOT NULL)

table pgflow.flow, owner pgflow_owner
  -- Every version of every workflow in SQL, with its text; none is ever removed
  flow_id integer not null generated always as identity -- Number of the version, among all workflows
  version integer not null -- Number of the version, from 1
  created_at timestamp with time zone not null -- Time at which it was made
  dropped_at timestamp with time zone -- Time at which the workflow was dropped
  handler integer -- Node at which the handler of an exception begins; null = it has none
  is_current boolean not null -- True if runs begin with it
  definer regrole not null -- Role that owns the function; steps run with its rights
  workflow text not null -- Name of the workflow
  function text not null -- The function that has the SQL of all nodes
  hash text not null -- Hash of text, definer and search path
  created_by text not null -- Name of the session that made it
  signature text not null -- Name and parameters, as they were written
  body text not null -- The text
  parameters jsonb not null -- The parameters: [{name, type, value if it has a default}, ...]
  constraint flow_pkey PRIMARY KEY (flow_id)
  constraint flow_workflow_check CHECK (((octet_length(workflow) >= 1) AND (octet_length(workflow) <= 50)))
  constraint flow_workflow_version_key UNIQUE (workflow, version)

table pgflow.flow_frame, owner pgflow_owner
  -- Where a run of a workflow in SQL is: a row while it is open
  with fillfactor=50, autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  run_id bigint not null -- The run
  flow_id integer not null -- The version with which it has begun
  seq integer not null -- The last unit that is in it
  pc integer not null -- The node at hand
  call integer not null -- The last call that was made
  tries integer not null -- Failed attempts of the step at hand
  strikes integer not null -- Those of them that count against its retry
  state pgflow.flow_state not null -- on, undoing = compensations are run, handling = so is the handler of an exception
  is_marked boolean not null -- True if the journal says where the run is
  undo integer[] not null -- Nodes of the compensations of what was done
  waits jsonb -- The call that is open, and the unit of its timer
  run jsonb not null -- Facts of the run, which steps see as the variable run
  loops jsonb not null -- Numbers of the rows at hand, and locks that are held, by node
  news jsonb not null -- Variables that have changed since the last mark, and that no unit tells
  error jsonb -- The error of a run that failed, or why it was cancelled
  vars jsonb not null -- All variables
  constraint flow_frame_pkey PRIMARY KEY (run_id)

table pgflow.flow_item, owner pgflow_owner
  -- The rows that an open loop walks, and the inputs and results of children that a for each starts
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  run_id bigint not null -- The run
  pc integer not null -- The node that has read the rows, or that of a compensation
  n integer not null -- Number of the row, or of the compensation among those that are owed
  call integer -- Number of the call that started the child; null = not yet
  is_done boolean not null default false -- True if the child has ended
  item jsonb not null -- The row, the input of the child, or the variables behind the step that is to be taken back
  output jsonb -- Result of the child, or {error, status}
  constraint flow_item_pkey PRIMARY KEY (run_id, pc, n)

table pgflow.flow_node, owner pgflow_owner
  -- What a workflow in SQL was compiled to: see sql/flows/compile.sql
  flow_id integer not null -- The version that it is of
  pc integer not null -- Number of the node
  next integer not null -- The node after it
  alt integer -- The node after it where a condition does not hold, or no row is left
  op text not null -- Kind of node
  name text -- Name of the step, signal or workflow
  opts jsonb not null -- retry, every and undo of a step; leads = a wait or the end is next; void = the result is null; into, most and go_on of a wait or child; var and rows of a loop
  constraint flow_node_pkey PRIMARY KEY (flow_id, pc)

table pgflow.flow_right, owner pgflow_owner
  -- Rights to workflows in SQL, by role: see sql/flows/rights.sql
  role regrole not null -- Role that has the right; 0 = public
  granted_at timestamp with time zone not null -- Time of the grant
  workflow text not null -- Name of the workflow
  privilege text not null -- start, see or replace
  granted_by text not null -- Role that granted it
  constraint flow_right_pkey PRIMARY KEY (workflow, privilege, role)
  constraint flow_right_privilege_check CHECK ((privilege = ANY (ARRAY['start'::text, 'see'::text, 'replace'::text])))
  constraint flow_right_workflow_check CHECK (((octet_length(workflow) >= 1) AND (octet_length(workflow) <= 50)))

table pgflow.flow_test, owner pgflow_owner
  -- Tests whose rows their transaction keeps: a row here keeps that from being committed
  queue text not null -- The queue of the test
  constraint flow_test_pkey PRIMARY KEY (queue)
  constraint refuse_test TRIGGER DEFERRABLE INITIALLY DEFERRED
  CREATE CONSTRAINT TRIGGER refuse_test AFTER INSERT ON pgflow.flow_test DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pgflow.refuse_test_()

table pgflow.gate, owner pgflow_owner
  -- Gates that wait for an answer; gone when one is answered, has expired, was given up, or its run has ended
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  run_id bigint not null -- The run that waits
  chain_id bigint not null -- Its chain, under which the answer comes
  asked_at timestamp with time zone not null -- Time of asking
  expires_at timestamp with time zone -- Time from which no answer counts; null = it waits for good
  timeout_seconds double precision -- Seconds that each of those have who are asked one after the other; null = no limit
  call integer not null -- Number of the call that waits
  seq integer not null -- Place in the journal of the unit that asked, which has the request
  quorum integer not null -- Number of people who must approve
  needs_value boolean not null -- True if an approval must bring a value: the request is none of the type that is asked for
  gate text not null -- Key of the gate, by which it is answered
  name text not null -- Name of the gate
  on_timeout text not null -- Verdict once its time is over: expire, reject, escalate or approve
  payload_hash text not null -- Hash of the request as it was asked
  approvers text[] not null -- Names or roles of whoever may answer at first; empty = anybody
  escalate text[] not null -- Names of those who are asked next, one after the other, when the time of those before is over
  constraint gate_gate_check CHECK (((octet_length(gate) >= 1) AND (octet_length(gate) <= 255)))
  constraint gate_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
  constraint gate_on_timeout_check CHECK ((on_timeout = ANY (ARRAY['expire'::text, 'reject'::text, 'escalate'::text, 'approve'::text])))
  constraint gate_pkey PRIMARY KEY (run_id, call)
  constraint gate_quorum_check CHECK ((quorum >= 1))
  constraint gate_timeout_seconds_check CHECK ((timeout_seconds > (0)::double precision))
  CREATE INDEX gate_asked_idx ON pgflow.gate USING btree (asked_at)
  CREATE UNIQUE INDEX gate_key ON pgflow.gate USING btree (gate)

table pgflow.gate_answer, owner pgflow_owner
  -- Answers at gates, in their order; kept as long as the history of the run
  gate text not null -- Key of the gate
  n integer not null -- Its place among what was said at this gate, from 1
  run_id bigint not null -- The run that asked
  answered_at timestamp with time zone not null -- Time of the answer
  closes boolean not null -- True if it closed the gate: one of several approvals that are needed does not
  verdict text not null -- approve, reject, escalate or take_over; delegate = somebody else may answer; expire = nobody did in time
  answered_by text not null -- Name of whoever answered, as the caller gave it
  sent_by text not null -- Role of the session that said so
  payload_hash text -- Hash of what was answered: the request, or the last edit of it
  hand_to text -- To whom it was escalated or delegated; null = to nobody
  reason text -- The reason that was given; null = none
  refusal text -- Reason why the code of the run could not take it, so that it does not count; null = it counts
  acting_as text[] -- Roles of whoever answered, as the app gave them; null = none were given
  value pgflow.run_value -- Edited request, or the result of whoever took over; null = none
  constraint gate_answer_answered_by_check CHECK (((octet_length(answered_by) >= 1) AND (octet_length(answered_by) <= 1024)))
  constraint gate_answer_hand_to_check CHECK (((octet_length(hand_to) >= 1) AND (octet_length(hand_to) <= 1024)))
  constraint gate_answer_pkey PRIMARY KEY (gate, n)
  constraint gate_answer_verdict_check CHECK ((verdict = ANY (ARRAY['approve'::text, 'reject'::text, 'escalate'::text, 'take_over'::text, 'delegate'::text, 'expire'::text])))
  CREATE INDEX gate_answer_run_idx ON pgflow.gate_answer USING btree (run_id)

table pgflow.held, owner pgflow_owner
  -- Place: paused by somebody, or stuck until somebody helps; says why
  run_id bigint not null -- The run that is held
  token bigint -- Token of the lease that held it; null where no worker did
  held_at timestamp with time zone not null -- Time since which it is held
  lane_id integer not null -- Its queue, workflow and version
  last_seq integer not null -- Last unit of the run; 0 = nothing is recorded
  attempt integer not null -- Claims since the run last made progress
  priority smallint not null -- Lower numbers are claimed first, within their lane
  has_begun boolean -- True once a worker has held the run
  state text not null -- paused = by an order, stuck = it needs help
  reason text not null -- Reason in short: the one given for the pause, or the kind of trouble
  held_by text -- Author of the pause, with the role of the session in brackets; pgflow if the engine paused it
  code_hash text -- Hash of the code that found the run impossible to replay: a worker with other code tries it again
  detail jsonb -- Details of the trouble, such as both sides of a divergence
  constraint held_pkey PRIMARY KEY (run_id)
  constraint held_reason_check CHECK ((char_length(reason) <= 255))
  constraint held_state_check CHECK ((state = ANY (ARRAY['paused'::text, 'stuck'::text])))

table pgflow.imported, owner pgflow_owner
  -- Runs whose history was recorded in another database. They have an outcome and so can never be claimed
  run_id bigint not null -- The number that the run has here
  imported_at timestamp with time zone not null -- Time of the import
  generation integer not null -- Number of the generation in its chain
  root uuid not null -- UUID of its chain: with the generation, the name of a run in all databases
  status text not null -- The status that it had where it was exported
  imported_by text not null -- Name of the session that imported it
  origin jsonb not null -- Origin there: its number, and the run that started it
  constraint imported_pkey PRIMARY KEY (run_id)
  constraint imported_root_generation_key UNIQUE (root, generation)

table pgflow.lane, owner pgflow_owner
  -- Interned (queue, workflow, version): the stable number under which runs queue up, so that a worker reads only what it serves
  lane_id integer not null generated always as identity -- The number of the lane
  queue text not null -- Queue that runs of this lane stand in
  workflow text not null -- Workflow that they run
  version text not null default ''::text -- Version of the code that they need; empty = any
  paused_at timestamp with time zone -- Time since which nothing is claimed from this lane; null = not paused
  constraint lane_pkey PRIMARY KEY (lane_id)
  constraint lane_queue_check CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 255)))
  constraint lane_queue_workflow_version_key UNIQUE (queue, workflow, version)
  constraint lane_version_check CHECK ((octet_length(version) <= 255))
  constraint lane_workflow_check CHECK (((octet_length(workflow) >= 1) AND (octet_length(workflow) <= 255)))

table pgflow.lease, owner pgflow_owner
  -- Place: a worker holds the run. Whoever writes for it must show this token; rows are immutable
  with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0.5
  run_id bigint not null -- The run that is held
  token bigint not null -- Random number of this lease, compared for equality only
  claimed_at timestamp with time zone not null -- Time of the claim
  worker_id integer not null -- The worker that holds it
  lane_id integer not null -- Its queue, workflow and version
  last_seq integer not null -- Last unit at the time of the claim: a higher one in the journal is progress
  attempt integer not null -- Claims since the run last made progress, this one included
  priority smallint not null -- Lower numbers are claimed first, within their lane
  suspect smallint not null -- Workers that died holding this run without a new unit
  company smallint not null default 0 -- Most suspects that its worker was to begin with it; see ready.company
  constraint lease_pkey PRIMARY KEY (run_id)

table pgflow.legal_hold, owner pgflow_owner
  -- Runs that nothing removes until the hold is released
  chain_id bigint not null -- The run, by its first generation
  held_at timestamp with time zone not null -- Time since which it is held
  why text not null -- The reason given
  held_by text not null -- Name of the person who asked for it
  constraint legal_hold_pkey PRIMARY KEY (chain_id)

table pgflow.line, owner pgflow_owner
  -- Rules of queues whose runs stand in a line
  rate_seconds double precision -- Seconds for which that rate is
  key_rate_seconds double precision -- Seconds for which that rate is
  expires_seconds double precision -- Seconds after which a run that has not begun is cancelled; null = never
  ageing_seconds double precision -- Seconds of waiting that are worth one step of priority; null = priorities are strict
  max_per_key integer -- Most runs of one key that may be held at once; null = no limit
  rate integer -- Most runs of the queue that may begin in so many seconds; null = no limit
  burst integer -- Size of the bucket that fills at this rate; null = no window of that length ever has more
  key_rate integer -- Most runs of one key that may begin in so many seconds; null = no limit
  key_burst integer -- Size of a bucket for each key; null = windows
  is_fifo boolean not null default false -- True if a run of a key begins only once those before it have ended
  is_over boolean not null default false -- True if the queue has no such rules any more: whatever still comes into its line is taken out
  queue text not null -- Name of the queue
  key text -- Expression for the key of a run; null = all have one
  rate_said text -- The rate as it was said
  key_rate_said text -- The rate of keys as it was said
  weights jsonb -- Runs in a turn, by key; one that is not named has 1
  constraint line_ageing_seconds_check CHECK (((ageing_seconds > (0)::double precision) AND (ageing_seconds <= (2592000)::double precision)))
  constraint line_burst_check CHECK ((burst > 0))
  constraint line_check CHECK ((((rate IS NULL) = (rate_seconds IS NULL)) AND ((key_rate IS NULL) = (key_rate_seconds IS NULL)) AND ((burst IS NULL) OR (rate IS NOT NULL)) AND ((key_burst IS NULL) OR (key_rate IS NOT NULL))))
  constraint line_expires_seconds_check CHECK (((expires_seconds > (0)::double precision) AND (expires_seconds <= (31536000)::double precision)))
  constraint line_key_burst_check CHECK ((key_burst > 0))
  constraint line_key_check CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255)))
  constraint line_key_rate_check CHECK ((key_rate > 0))
  constraint line_key_rate_seconds_check CHECK (((key_rate_seconds >= (0.01)::double precision) AND (key_rate_seconds <= (2592000)::double precision)))
  constraint line_max_per_key_check CHECK ((max_per_key > 0))
  constraint line_pkey PRIMARY KEY (queue)
  constraint line_rate_check CHECK ((rate > 0))
  constraint line_rate_seconds_check CHECK (((rate_seconds >= (0.01)::double precision) AND (rate_seconds <= (2592000)::double precision)))
  constraint line_weights_check CHECK ((jsonb_typeof(weights) = 'object'::text))

table pgflow.line_bucket, owner pgflow_owner
  -- Buckets of rates with a burst; one that is not here is full
  with fillfactor=70, autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  filled_at timestamp with time zone not null -- Time at which it held that much
  tokens double precision not null -- Runs that could begin then
  scope "char" not null -- q = of the queue, k = of a key
  queue text not null -- Name of the queue
  key text not null -- The key; empty for the queue
  constraint line_bucket_pkey PRIMARY KEY (queue, scope, key)
  constraint line_bucket_scope_check CHECK ((scope = ANY (ARRAY['q'::"char", 'k'::"char"])))

table pgflow.line_rate, owner pgflow_owner
  -- Runs that began, counted by hundredths of a window
  with fillfactor=70, autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  slot bigint not null -- Number of the hundredth
  starts integer not null -- Runs that began in it
  scope "char" not null -- q = of the queue, k = of a key
  queue text not null -- Name of the queue
  key text not null -- The key; empty for the queue
  constraint line_rate_pkey PRIMARY KEY (queue, scope, key, slot)
  constraint line_rate_scope_check CHECK ((scope = ANY (ARRAY['q'::"char", 'k'::"char"])))

table pgflow.line_run, owner pgflow_owner
  -- Runs that stand in a line: ready, once their turn comes
  with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  run_id bigint not null -- The run
  expires_at timestamp with time zone -- Time from which it must not begin; null = none
  rank bigint not null -- Place among the runs of its key, before its number: priority, or time and priority; -1 in order = an ancestor has the turn
  lane_id integer not null -- Its queue, workflow and version
  suspect smallint not null default 0 -- Workers that died holding it without a new unit
  is_fresh boolean not null -- True if no worker ever held its chain: rates are for these, and they stand behind the others
  queue text not null -- Name of the queue
  key text not null -- Its key; empty = none
  constraint line_run_pkey PRIMARY KEY (run_id)
  CREATE INDEX line_run_expires_idx ON pgflow.line_run USING btree (expires_at) WHERE (expires_at IS NOT NULL)
  CREATE INDEX line_run_order_idx ON pgflow.line_run USING btree (queue, is_fresh, key, rank, run_id)
  CREATE INDEX line_run_suspect_idx ON pgflow.line_run USING btree (queue, suspect, rank, run_id) WHERE (suspect > 1)

table pgflow.line_state, owner pgflow_owner
  -- Progress of lines, changed by claims under the lock of their queue
  with fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=500, autovacuum_vacuum_cost_delay=0
  opens_at timestamp with time zone -- Time at which a rate lets somebody begin again; null = no rate holds anybody back
  tended_at timestamp with time zone -- Time at which it was last tidied up
  queue text not null -- Name of the queue
  cursor text not null default ''::text -- The key whose turn was last
  constraint line_state_pkey PRIMARY KEY (queue)

table pgflow.line_turn, owner pgflow_owner
  -- Chains that have had a turn, of queues with a limit for each key: counts while it is held, in order while it is open
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  chain_id bigint not null -- The chain
  run_id bigint not null -- Its generation that was claimed last
  queue text not null -- Name of the queue
  key text not null -- Its key
  constraint line_turn_pkey PRIMARY KEY (queue, key, chain_id)

table pgflow.lock, owner pgflow_owner
  -- Who holds a lock: a run, or plain code for a limited time; several share one if all of them said so
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  fence bigint not null -- The number of this time that the lock was won: greater than that of every holder of the key before
  run_id bigint -- The run that holds it; null = plain code
  since timestamp with time zone not null -- Time at which it was won
  expires_at timestamp with time zone -- Time from which it counts no more; null = as long as its run holds it
  call integer -- Number of the call of the run that asked for it; 0 = it comes from the generation before, and nobody has asked yet
  is_shared boolean not null -- True if others may hold it too that share it
  key text not null -- Name of what is locked
  holder text not null -- Key of the run, or the name that plain code gave
  proof bytea -- Hash of the secret by which plain code shows that it is the holder; null = a run, which has its lease
  constraint lock_check CHECK (((run_id IS NULL) = (call IS NULL)))
  constraint lock_check1 CHECK (((run_id IS NOT NULL) OR ((expires_at IS NOT NULL) AND (proof IS NOT NULL))))
  constraint lock_holder_check CHECK (((octet_length(holder) >= 1) AND (octet_length(holder) <= 512)))
  constraint lock_key_check CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255)))
  constraint lock_pkey PRIMARY KEY (fence)
  CREATE UNIQUE INDEX lock_exclusive_key ON pgflow.lock USING btree (key) WHERE (NOT is_shared)
  CREATE INDEX lock_expires_idx ON pgflow.lock USING btree (expires_at) WHERE (expires_at IS NOT NULL)
  CREATE INDEX lock_key_idx ON pgflow.lock USING btree (key)
  CREATE INDEX lock_run_idx ON pgflow.lock USING btree (run_id) WHERE (run_id IS NOT NULL)

table pgflow.lock_broken, owner pgflow_owner
  -- Locks that an operator took from their holders
  fence bigint not null -- The number of the time that it had been won
  run_id bigint -- The run that held it; null = plain code
  broken_at timestamp with time zone not null -- Time at which it was taken away
  key text not null -- Name of what was locked
  holder text not null -- Key of the run, or the name that plain code gave
  broken_by text not null -- Name of whoever took it away
  why text not null -- Reason, in the words of whoever took it away
  constraint lock_broken_pkey PRIMARY KEY (fence)

table pgflow.lock_nudge, owner pgflow_owner
  -- Keys of locks to look at: written by who could not look itself, deleted by the sweep that could
  with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  nudge_id bigint not null generated always as identity -- The number of the nudge
  nudged_at timestamp with time zone not null -- Time of writing: as long as it is new, whoever wakes runs sweeps soon
  key text not null -- Name of what is locked
  constraint lock_nudge_pkey PRIMARY KEY (nudge_id)

table pgflow.lock_wait, owner pgflow_owner
  -- Who waits for a lock, in the order in which they asked
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  ticket bigint not null generated always as identity -- Its place in the queue of the key
  run_id bigint -- The run that waits; null = plain code
  asked_at timestamp with time zone not null -- Time at which it asked
  expires_at timestamp with time zone -- Plain code: when it must have asked again, or it is passed over; null for a run
  ttl interval -- Time for which it wants the lock; null = until it gives it back
  call integer -- Number of the call of the run
  is_shared boolean not null -- True if it would share the lock
  is_checked boolean not null -- True once it is known to close no circle of runs that wait for each other
  key text not null -- Name of what is locked
  holder text not null -- Key of the run, or the name that plain code gave
  proof bytea -- Hash of the secret of plain code, as it will be in the lock; null = a run
  within bigint[] not null default '{}'::bigint[] -- Fences that the code holds around this: they are not given back before it has the lock
  constraint lock_wait_check CHECK (((run_id IS NULL) = (call IS NULL)))
  constraint lock_wait_check1 CHECK (((run_id IS NOT NULL) OR ((expires_at IS NOT NULL) AND (ttl IS NOT NULL) AND (proof IS NOT NULL))))
  constraint lock_wait_holder_check CHECK (((octet_length(holder) >= 1) AND (octet_length(holder) <= 512)))
  constraint lock_wait_key_check CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255)))
  constraint lock_wait_pkey PRIMARY KEY (ticket)
  CREATE UNIQUE INDEX lock_wait_call_key ON pgflow.lock_wait USING btree (run_id, call) WHERE (run_id IS NOT NULL)
  CREATE INDEX lock_wait_expires_idx ON pgflow.lock_wait USING btree (expires_at) WHERE (expires_at IS NOT NULL)
  CREATE UNIQUE INDEX lock_wait_holder_key ON pgflow.lock_wait USING btree (key, holder, proof) WHERE (run_id IS NULL)
  CREATE INDEX lock_wait_key_idx ON pgflow.lock_wait USING btree (key, ticket)
  CREATE INDEX lock_wait_unchecked_idx ON pgflow.lock_wait USING btree (key, ticket) WHERE (NOT is_checked)
  CREATE INDEX lock_wait_within_idx ON pgflow.lock_wait USING gin (within) WHERE (within <> '{}'::bigint[])

table pgflow.loss, owner pgflow_owner
  -- Losses that workers have noticed: what was acknowledged and is not there any more
  loss_id bigint not null generated always as identity -- Number of the loss
  noticed_at timestamp with time zone not null -- Time at which a worker noticed
  acknowledged_at timestamp with time zone not null -- Time at which it last knew how far the lost server's log was durable
  closed_at timestamp with time zone -- Time at which a person closed it; null = it is open
  acknowledged_bytes bigint not null -- Position up to which that log was durable then, in bytes
  kept_bytes bigint not null -- Position in it up to which the server at hand had come, in bytes
  old_timeline integer not null -- Timeline of the lost log
  new_timeline integer not null -- Timeline of the log that goes on
  worker_id integer not null -- The worker that noticed
  pid integer not null -- Number of its process
  run_count integer not null -- Runs of which something is lost
  host text not null -- Name of its machine
  closed_by text -- Name of the person who closed it, with the role of the session in brackets
  why text -- Reason that they gave
  runs jsonb not null -- Key, seq and end of each, up to a thousand
  constraint loss_pkey PRIMARY KEY (loss_id)

table pgflow.migration, owner pgflow_owner
  -- pgflow-engine marker: the numbered migrations applied to this schema, each once
  number integer not null -- The four digits that the name of the file starts with
  name text not null -- Name of the file below migrations/, without its suffix
  sha256 text not null -- Hash of the text that was applied; another text under this name is refused
  applied_at timestamp with time zone not null default clock_timestamp() -- Time at which it was applied
  constraint migration_pkey PRIMARY KEY (number)

table pgflow.nudge, owner pgflow_owner
  -- Chains to look at: written together with a message, deleted by the wake that found the run where it could be looked at
  with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  chain_id bigint not null -- The chain to look at
  nudge_id bigint not null default nextval('pgflow.nudge_id_seq'::regclass) -- The number of the nudge: a wake deletes only those it saw before it looked
  constraint nudge_pkey PRIMARY KEY (chain_id, nudge_id)

table pgflow.outcome, owner pgflow_owner
  -- How a run ended; insert only, so that "written once" is a constraint
  run_id bigint not null -- The run that ended
  token bigint -- Token of the lease that wrote it; null where SQL ended a run that no worker held
  finished_at timestamp with time zone not null -- Time of the end
  status text not null -- completed, failed, cancelled, or continued as the next generation
  reason text -- Reason given for a cancel
  output pgflow.run_value -- Value that the workflow returned
  error pgflow.run_value -- The exception that it raised: type, message, traceback
  constraint outcome_check CHECK (((status = 'failed'::text) = (error IS NOT NULL)))
  constraint outcome_pkey PRIMARY KEY (run_id)
  constraint outcome_status_check CHECK ((status = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text, 'continued'::text])))
  CREATE INDEX outcome_cancelled_idx ON pgflow.outcome USING btree (run_id) WHERE (status = 'cancelled'::text)
  CREATE INDEX outcome_failed_idx ON pgflow.outcome USING btree (run_id) WHERE (status = 'failed'::text)
  CREATE TRIGGER name_blobs AFTER INSERT ON pgflow.outcome FOR EACH ROW WHEN ((strpos((new.output)::text, '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('outcome')

table pgflow.owed, owner pgflow_owner
  -- Open effects, gates and obligations, so that an inbox never scans the journal; equals the fold over units
  run_id bigint not null -- The run that owes it
  call integer not null -- Number of the call that it is about
  opened_at timestamp with time zone not null -- Time since which it is owed
  due_at timestamp with time zone -- Time at which it should be closed; null = no time is set
  kind text not null -- effect, gate or obligation
  name text not null -- Of the effect, gate or obligation
  owed_to text -- Name of the creditor; null = not given
  detail jsonb -- Notice for the person who closes it, its key and its state; null = none. sql/ledgers/obligations.sql has its members
  constraint owed_kind_check CHECK ((kind = ANY (ARRAY['effect'::text, 'gate'::text, 'obligation'::text])))
  constraint owed_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
  constraint owed_pkey PRIMARY KEY (run_id, call, kind)
  CREATE INDEX owed_due_idx ON pgflow.owed USING btree (due_at) WHERE ((kind = 'obligation'::text) AND ((detail ->> 'state'::text) = 'open'::text))
  CREATE INDEX owed_key_idx ON pgflow.owed USING btree (((detail ->> 'key'::text))) WHERE (kind = 'effect'::text)
  CREATE INDEX owed_obligation_idx ON pgflow.owed USING btree (((detail ->> 'key'::text))) WHERE (kind = 'obligation'::text)
  CREATE INDEX owed_opened_idx ON pgflow.owed USING btree (kind, opened_at)
  CREATE INDEX owed_person_idx ON pgflow.owed USING btree (run_id) WHERE ((kind = 'obligation'::text) AND (detail ? 'since'::text))
  CREATE INDEX owed_ref_idx ON pgflow.owed USING btree (((detail ->> 'ref'::text))) WHERE (detail ? 'ref'::text)

table pgflow.page, owner pgflow_owner
  -- What a person must bring on, and when one was told; kept by workers whose app has a pager
  run_id bigint not null -- The run that needs a person
  opened_at timestamp with time zone not null -- Time since which a person is needed
  next_at timestamp with time zone not null -- Time of the next page, or end of the lease of the current one; infinity = never again
  paged_at timestamp with time zone -- Time of the last page; null = none yet
  call integer not null -- Number of the call that it is about; 0 = the run itself
  tries integer not null -- Number of attempts since the last page
  kind text not null -- stuck, effect or obligation
  last_error text -- Class of the error with which the last try failed; null = it did not
  constraint page_kind_check CHECK ((kind = ANY (ARRAY['stuck'::text, 'effect'::text, 'gate'::text, 'obligation'::text])))
  constraint page_last_error_check CHECK ((char_length(last_error) <= 255))
  constraint page_pkey PRIMARY KEY (run_id, call, kind)

table pgflow.parked, owner pgflow_owner
  -- Place: waiting for a signal, a child, a timer or its time to start; holds no lease, thread or connection
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  run_id bigint not null -- The run that waits
  chain_id bigint not null -- Its chain, under which its mail comes
  token bigint -- Token of the lease that parked it; null for a run that has not begun
  parked_at timestamp with time zone not null -- Time since which it waits
  lane_id integer not null -- Its queue, workflow and version
  last_seq integer not null -- Last unit of the run; 0 = it has not begun
  priority smallint not null -- Lower numbers are claimed first, within their lane
  constraint parked_pkey PRIMARY KEY (run_id)

table pgflow.policy, owner pgflow_owner
  -- Versions of the policy, insert only: the newest counts
  version integer not null -- Its number; the greatest is in force
  set_at timestamp with time zone not null -- Time at which it was put in force
  set_by text not null -- Author of the version, with the role of the session in brackets
  why text not null -- Reason for it
  constraint policy_pkey PRIMARY KEY (version)
  constraint policy_set_by_check CHECK ((char_length(set_by) <= 255))
  constraint policy_why_check CHECK ((char_length(why) <= 4096))

table pgflow.policy_rule, owner pgflow_owner
  -- Rules of a version of the policy: the first that fits an effect says what it needs
  timeout_seconds double precision -- Seconds that each of those have who are asked one after the other; null = no limit
  version integer not null -- The version that it belongs to
  rule integer not null -- Its place: the first that fits counts
  quorum integer not null default 1 -- Number of people who must approve
  needs text not null -- gate = approval, nothing = it may go ahead
  risk text -- Fits effects of this risk; null = of any
  name text -- Fits effects of this name; null = of any
  amount text -- Path of an amount in the request; fits if it is above the limit, or no number
  above numeric -- The limit of the amount
  predicate text -- Condition on the request; a request that it cannot judge fits; null = any request
  author text -- model = fits what a model has chosen: effects that rest on a decision that names one, and steps of plans; null = any
  role text -- Fits what this database role does, or one that is a member of it: the role of the worker; null = any
  on_timeout text not null default 'expire'::text -- Verdict once the time is over: expire, reject, escalate or approve
  approvers text[] not null default '{}'::text[] -- Names or roles that may answer the gate; empty = anybody
  escalate text[] not null default '{}'::text[] -- Names of those who are asked next, one after the other
  constraint policy_rule_above_check CHECK ((above <> ALL (ARRAY['NaN'::numeric, 'Infinity'::numeric, '-Infinity'::numeric])))
  constraint policy_rule_asks_check CHECK (((needs = 'gate'::text) OR ((approvers = '{}'::text[]) AND (quorum = 1) AND (timeout_seconds IS NULL))))
  constraint policy_rule_author_check CHECK ((author = 'model'::text))
  constraint policy_rule_check CHECK (((amount IS NULL) = (above IS NULL)))
  constraint policy_rule_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
  constraint policy_rule_needs_check CHECK ((needs = ANY (ARRAY['gate'::text, 'nothing'::text])))
  constraint policy_rule_on_timeout_check CHECK ((on_timeout = ANY (ARRAY['expire'::text, 'reject'::text, 'escalate'::text, 'approve'::text])))
  constraint policy_rule_pkey PRIMARY KEY (version, rule)
  constraint policy_rule_quorum_check CHECK (((quorum >= 1) AND (quorum <= 100)))
  constraint policy_rule_risk_check CHECK ((risk = ANY (ARRAY['reversible'::text, 'compensable'::text, 'irreversible'::text])))
  constraint policy_rule_role_check CHECK (((octet_length(role) >= 1) AND (octet_length(role) <= 63)))
  constraint policy_rule_timeout_seconds_check CHECK (((timeout_seconds > (0)::double precision) AND (timeout_seconds < 'Infinity'::double precision)))
  constraint policy_rule_version_fkey FOREIGN KEY (version) REFERENCES pgflow.policy(version)

table pgflow.pool, owner pgflow_owner
  -- Pools that runs draw on: what may be spent, by unit, in each period
  made_at timestamp with time zone not null -- Time at which it was made
  revoked_at timestamp with time zone -- Time since which it admits nothing; null = it does
  soft numeric -- Part of a limit from which on a run that draws is told; null = none is
  is_hard boolean not null -- True if no step at all of a run under it is licensed once it is used up or revoked
  name text not null -- Its name
  pools text[] not null -- Itself, its parent, the parent of that, and so on: what is drawn on it is drawn on all of them
  per text -- Calendar period after which it is full again; null = never
  tz text not null -- Time zone of that calendar
  limits pgflow.amounts not null -- What may be spent in a period, by unit; a unit that is not named has no limit
  revoked_by text -- Who revoked it
  revoked_why text -- The reason given
  declared jsonb -- What the code of an app last declared of it; null = no app declares it
  constraint pool_check CHECK (((pools[1] = name) AND (cardinality(pools) <= 8)))
  constraint pool_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
  constraint pool_per_check CHECK ((per = ANY (ARRAY['hour'::text, 'day'::text, 'week'::text, 'month'::text, 'quarter'::text, 'year'::text])))
  constraint pool_pkey PRIMARY KEY (name)
  constraint pool_soft_check CHECK (((soft > (0)::numeric) AND (soft <= (1)::numeric)))
  CREATE INDEX pool_parent_idx ON pgflow.pool USING btree ((pools[2])) WHERE (pools[2] IS NOT NULL)

table pgflow.pool_change, owner pgflow_owner
  -- What was said of pools, append only: who allowed what, when and why
  pool_change_id bigint not null generated always as identity -- Number of the change
  changed_at timestamp with time zone not null -- Time at which it was said
  pool text not null -- The pool
  what text not null -- set, granted, revoked or restored
  said jsonb not null -- The limits and options that were set, or the amounts that were granted
  why text -- The reason given
  changed_by text not null -- Who said it
  constraint pool_change_pkey PRIMARY KEY (pool_change_id)
  constraint pool_change_what_check CHECK ((what = ANY (ARRAY['set'::text, 'granted'::text, 'revoked'::text, 'restored'::text])))
  CREATE INDEX pool_change_idx ON pgflow.pool_change USING btree (pool, changed_at)

table pgflow.queue, owner pgflow_owner
  -- Limits and policy of a queue; a row appears when a queue is first named
  queue text not null -- Name of the queue
  paused_at timestamp with time zone -- Time since which nothing is claimed from it; null = not paused
  max_running integer -- How many runs of this queue may be leased at once over all workers; null = no limit
  max_per_worker integer -- Most runs of this queue that one worker may hold at once; null = no limit
  max_deaths smallint not null default 5 -- After so many workers died holding a run that recorded nothing since its claim, the run is stuck
  refuses_unknown boolean not null default false -- Whether a start of a workflow, or of a version of it, that no worker has ever had is refused
  is_lined boolean -- True if its runs stand in a line: see pgflow.line; null = they do not
  is_closed boolean -- True if it takes no new runs; null = it does
  declared jsonb -- Rules that the code of an app declared last; null = it declares none
  constraint queue_max_deaths_check CHECK (((max_deaths >= 1) AND (max_deaths <= 1000)))
  constraint queue_max_per_worker_check CHECK ((max_per_worker > 0))
  constraint queue_max_running_check CHECK ((max_running > 0))
  constraint queue_pkey PRIMARY KEY (queue)
  constraint queue_queue_check CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 255)))

table pgflow.queue_change, owner pgflow_owner
  -- What was said of queues, append only: who set which rule, when and why
  queue_change_id bigint not null generated always as identity -- Number of the change
  changed_at timestamp with time zone not null -- Time at which it was said
  queue text not null -- Name of the queue
  what text not null -- set, paused, resumed or purged
  said jsonb not null -- The rules that were set, as they were said; null takes one away. Of a purge, how many runs
  why text -- The reason given
  changed_by text not null -- Name of whoever said it
  constraint queue_change_pkey PRIMARY KEY (queue_change_id)
  constraint queue_change_what_check CHECK ((what = ANY (ARRAY['set'::text, 'paused'::text, 'resumed'::text, 'purged'::text])))
  CREATE INDEX queue_change_idx ON pgflow.queue_change USING btree (queue, changed_at)

table pgflow.rate, owner pgflow_owner
  -- Counts of runs by minute and queue, for people who look at the system
  with fillfactor=50
  minute timestamp with time zone not null -- Beginning of the minute
  upto_run_id bigint -- Newest run at the look of this minute; null = of a queue, or before the first look
  started integer not null default 0 -- Runs that were started between two looks
  completed integer not null default 0 -- Runs that workers completed
  failed integer not null default 0 -- Runs that failed
  cancelled integer not null default 0 -- Runs that were cancelled
  queued integer -- Runs that could be claimed at the look; null = there was none
  oldest_seconds real -- Time for which the oldest of them had waited; null = none was queued
  queue text not null -- Name of the queue; empty = all of them
  took integer[] -- Ends by duration, as in pgflow.rates; null = of a queue
  constraint rate_pkey PRIMARY KEY (minute, queue)

table pgflow.ready, owner pgflow_owner
  -- Place: runnable now. The primary key is the order of claiming: started first, served first, however often it waited meanwhile
  with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0.5
  run_id bigint not null -- The run that may be claimed
  ready_at timestamp with time zone not null -- Time since which it is ready
  lane_id integer not null -- Its queue, workflow and version; negative, if it stands in a line
  last_seq integer not null -- Last unit of the run: 0 says that nothing has been recorded and nothing need be read
  attempt integer not null -- Claims so far since the run last made progress
  priority smallint not null -- Lower numbers are claimed first, within their lane
  suspect smallint not null default 0 -- Workers that died holding this run without a new unit; from the second on a worker has one group of such runs at a time
  company smallint not null default 0 -- Most runs of its group, itself included: half of those that were suspects with it when a worker last died; 0 = no matter
  has_begun boolean -- True once a worker has held the run; null before, which takes no room in the rows of those that start
  constraint ready_pkey PRIMARY KEY (lane_id, priority, run_id)
  constraint ready_run_id_key UNIQUE (run_id)
  CREATE INDEX ready_suspect_idx ON pgflow.ready USING btree (lane_id, suspect, priority, run_id) WHERE (suspect > 1)

table pgflow.relabelled, owner pgflow_owner
  -- Runs that have changed their labels, with those that they were started with
  run_id bigint not null -- The run
  labels pgflow.run_object -- Its labels when it was started; null = none
  constraint relabelled_pkey PRIMARY KEY (run_id)

table pgflow.relay, owner pgflow_owner
  -- Relays: who brings which events where, and how far each has come
  with fillfactor=50, autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0
  event_id bigint not null default 0 -- Its cursor: every event up to this number was delivered, or is a delivery
  horizon bigint not null default 0 -- No event up to this number can appear any more: it goes no further
  seen_id bigint -- The next horizon: the newest number when it last looked
  seen_xid xid8 -- It is one once every transaction before this one has ended
  token bigint -- Fence of the worker that delivers for it; null = none does
  leased_until timestamp with time zone -- Time from which another worker may
  open_until timestamp with time zone -- The circuit is open until then: its target has failed again and again
  paused_at timestamp with time zone -- Time at which an operator has paused it
  declared_at timestamp with time zone not null -- Time at which it was declared first
  delivered bigint not null default 0 -- Number of events that it has delivered
  failures integer not null default 0 -- Deliveries that failed since one last succeeded
  name text not null -- Its name
  target text not null -- Target of its events, in words
  error text -- The last failure; null = none since the last success
  topics text[] not null -- Topics that it listens to
  constraint relay_check CHECK (((seen_id IS NULL) = (seen_xid IS NULL)))
  constraint relay_check1 CHECK (((token IS NULL) = (leased_until IS NULL)))
  constraint relay_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 100)))
  constraint relay_pkey PRIMARY KEY (name)

table pgflow.replacement, owner pgflow_owner
  -- Parked runs that begin once the chains whose key they have taken over have ended
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  run_id bigint not null -- The run that is to begin
  waits_for bigint not null -- A chain that has had its key
  constraint replacement_pkey PRIMARY KEY (run_id, waits_for)

table pgflow.reservation, owner pgflow_owner
  -- What open calls have reserved and not spent yet
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  run_id bigint not null -- The run
  reserved_at timestamp with time zone not null -- Time at which the call was admitted
  call integer not null -- Number of the call
  pools text[] not null -- The pools that it draws on
  periods timestamp with time zone[] not null -- The period of each
  amounts pgflow.amounts not null -- What is left of it, by unit
  constraint reservation_pkey PRIMARY KEY (run_id, call)

table pgflow.retention_rule, owner pgflow_owner
  -- For how long workers keep which runs; what no rule matches stays
  keep_seconds double precision not null -- Seconds from the end of a family for which it is kept
  set_at timestamp with time zone not null -- Time at which it was set
  rule text not null -- Name of the rule
  workflow text -- Workflow of the runs that it is for; null = all
  status text -- Status with which they ended; null = all
  tenant text -- Their tenant; null = all
  labels jsonb -- Labels that they have; null = any
  set_by text not null -- Name of the setter
  constraint retention_rule_keep_seconds_check CHECK (((keep_seconds >= (0)::double precision) AND (keep_seconds < 'Infinity'::double precision)))
  constraint retention_rule_labels_check CHECK ((jsonb_typeof(labels) = 'object'::text))
  constraint retention_rule_pkey PRIMARY KEY (rule)
  constraint retention_rule_rule_check CHECK (((octet_length(rule) >= 1) AND (octet_length(rule) <= 255)))
  constraint retention_rule_status_check CHECK ((status = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text])))

table pgflow.run, owner pgflow_owner
  -- One execution of a workflow; insert only, but for labels that it changes. A chain is a run and the generations that continued it
  run_id bigint not null -- The number of the run
  chain_id bigint not null -- Number of the first run of the chain: the same for all generations
  root_run_id bigint not null -- The topmost ancestor (itself for a run without a parent)
  parent_run_id bigint -- The run that started this one as its child; null = none
  origin_run_id bigint -- The run whose journal this one begins with; null = it began empty
  created_at timestamp with time zone not null -- Time of the start
  run_at timestamp with time zone -- Time at which it may begin, if that is later than its start
  deadline_at timestamp with time zone -- Time at which it is cancelled if it has not ended; null = never
  root uuid not null -- UUIDv7 of the chain: the stem of its idempotency keys
  start_id uuid -- Made up by whoever sent a start that must not find a run of somebody else under its key: sent again, it finds its own
  generation integer not null -- 1, and one more each time the run continues as new, is rewound or restarted
  lane_id integer not null -- Its queue, workflow and version
  parent_call integer -- Number of the parent's call that started it; null = no parent
  origin_seq integer -- Number of units it has from there: those with a seq up to this one
  priority smallint not null -- Lower numbers are claimed first, within their lane
  close_policy "char" -- What the end of the parent does to this run: c = cancel it, a = abandon it to itself
  tenant text not null -- Tenant of the run; empty where there is only one
  key text not null -- The key it was started with, or one made up for it
  pool text -- The pool that it draws on; null = none
  input pgflow.run_input not null -- Arguments of the workflow, an object of parameter names
  labels pgflow.run_object -- Strings by name, to find runs by; null = none
  metadata pgflow.run_object -- Data that the run carries along and hands on to its children; null = none
  heritage jsonb -- Other inheritance from there: the stems of keys and of random numbers, the beginning of its time, the tries that steps have; and the request that made it
  constraint run_check CHECK ((((generation > 1) OR ((generation = 1) AND (chain_id = run_id))) AND ((parent_run_id IS NULL) = (parent_call IS NULL)) AND ((parent_run_id IS NULL) = (close_policy IS NULL)) AND ((close_policy IS NULL) OR (close_policy = ANY (ARRAY['c'::"char", 'a'::"char"])))))
  constraint run_pkey PRIMARY KEY (run_id)
  CREATE UNIQUE INDEX run_generation_key ON pgflow.run USING btree (chain_id, generation) WHERE (generation > 1)
  CREATE INDEX run_key_idx ON pgflow.run USING btree (key)
  CREATE INDEX run_labels_idx ON pgflow.run USING gin (labels jsonb_path_ops) WHERE (labels IS NOT NULL)
  CREATE INDEX run_parent_idx ON pgflow.run USING btree (parent_run_id) WHERE (parent_run_id IS NOT NULL)
  CREATE INDEX run_pool_idx ON pgflow.run USING btree (pool) WHERE (pool IS NOT NULL)
  CREATE TRIGGER name_blobs AFTER INSERT OR UPDATE OF input ON pgflow.run FOR EACH ROW WHEN ((strpos((new.input)::text, '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('run')

table pgflow.run_key, owner pgflow_owner
  -- Which chain a public key names; while the row is here, a second start with this key is the same run or a conflict
  chain_id bigint not null -- The chain that the key names
  root uuid not null -- UUIDv7 made at the first start: the stem of every idempotency key this chain shows to the outside
  retention_seconds pgflow.key_retention -- How long after the end of its chain the key stays taken; null = as long as the history
  tenant pgflow.tenant_name not null default ''::text -- Tenant of the key; empty where there is only one
  key pgflow.key_text not null -- The key, unique for each tenant
  constraint run_key_pkey PRIMARY KEY (tenant, key)
  CREATE INDEX run_key_retention_idx ON pgflow.run_key USING btree (retention_seconds, chain_id) WHERE (retention_seconds IS NOT NULL)

table pgflow.run_update, owner pgflow_owner
  -- Updates that were sent to runs; kept as long as the history of the run. What was asked and answered is in the mailbox and the journal
  with fillfactor=80
  chain_id bigint not null -- The chain that it is for
  sent_at timestamp with time zone not null -- Time of sending
  replied_at timestamp with time zone -- Time of the answer; null = there is none yet
  reply_run_id bigint -- The generation whose journal has the answer; null = none has it
  same_as bigint not null -- Hash of its name and arguments: the same id with others is refused
  reply_seq integer -- Place of the answer in that journal
  update_id text not null -- Id of the update, within its run
  name text not null -- Name of the handler
  sent_by text -- Sender: a role, or the name that the caller gave
  status text -- done, failed: its handler returned or raised; rejected: by its validator; refused: the run ended first; null = no answer yet
  error json -- Reason for which it was rejected; null = it was not, or the journal has it
  constraint run_update_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
  constraint run_update_pkey PRIMARY KEY (chain_id, update_id)
  constraint run_update_status_check CHECK ((status = ANY (ARRAY['done'::text, 'failed'::text, 'rejected'::text, 'refused'::text])))
  constraint run_update_update_id_check CHECK (((char_length(update_id) >= 1) AND (char_length(update_id) <= 255)))

table pgflow.saga_effect, owner pgflow_owner
  -- Effects that a generation handed on when it continued as new: a later one takes them back if it fails
  chain_id bigint not null -- The chain whose run did it
  generation integer not null -- The generation that did it and continued as new; 0 = the origin of a fork
  call integer not null -- Number that its call had there; of an origin's and of an imported one, its place
  n integer not null default 1 -- Number among those of that call: the effects of a child come with its result
  taken_back_in integer -- The generation that has taken it back, or begun to, and was then rewound or restarted; null = none
  name text not null -- Name of the effect
  key text not null -- Its idempotency key, from which the key of its compensation is made
  code text not null -- Place of the effect in the code: module and name; empty if its run did not record it
  request json not null -- Its arguments, by name
  result json -- Value that it returned; null where it was accepted first
  ref text -- The counterparty's reference under which it was accepted; null = it was not
  constraint saga_effect_code_check CHECK ((octet_length(code) <= 1024))
  constraint saga_effect_generation_check CHECK ((generation >= 0))
  constraint saga_effect_key_check CHECK ((octet_length(key) <= 255))
  constraint saga_effect_name_check CHECK ((octet_length(name) <= 255))
  constraint saga_effect_pkey PRIMARY KEY (chain_id, generation, key)
  CREATE TRIGGER name_blobs AFTER INSERT ON pgflow.saga_effect FOR EACH ROW WHEN ((strpos(concat(new.result, new.request), '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('saga_effect')

table pgflow.salt, owner pgflow_owner
  -- Secret of this installation, of which the numbers of its advisory locks are made; one row
  is_the_only boolean not null default true -- True: there is one row
  salt bytea not null -- Random bytes, which no view and no function shows
  constraint salt_is_the_only_check CHECK (is_the_only)
  constraint salt_pkey PRIMARY KEY (is_the_only)

table pgflow.schedule, owner pgflow_owner
  -- Schedules, with the slots that come next
  with fillfactor=50, autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000
  name text not null -- Its name, the first part of the keys of its runs
  version integer not null default 1 -- Grows with each change of what the slots are: slots of an older one are not taken
  created_at timestamp with time zone not null -- When it was set first
  changed_at timestamp with time zone not null -- When it was set last
  paused_at timestamp with time zone -- When it was paused; null = it is not
  undeclared_at timestamp with time zone -- When a slot was due and the code of no living worker declared it; null = it is declared, or no code ever did
  after_at timestamp with time zone not null -- The last slot that was computed, or the time from which on there are slots
  due_at timestamp with time zone -- When the first of the upcoming slots is due, its jitter included; null = none is known
  look_at timestamp with time zone -- When it is looked at next; null = it is paused, over, undeclared or cannot be evaluated
  last_slot_at timestamp with time zone -- The last slot that was decided: nothing up to it fires by itself any more
  last_fired_at timestamp with time zone -- When it last started a run
  error_at timestamp with time zone -- When it last failed to start a run, or to be evaluated
  timeout_seconds double precision -- A run that is not over by then is cancelled; null = never
  jitter_seconds double precision not null default 0 -- Most seconds by which a slot is late on purpose: always the same for one slot
  fired bigint not null default 0 -- Number of runs that it has started
  skipped bigint not null default 0 -- Number of slots that started nothing because a run before was open
  missed bigint not null default 0 -- Number of known slots that were late and not caught up
  priority integer not null default 0 -- Priority of its runs
  max_catch_up integer not null default 100 -- Most late slots that are caught up at once: the newest
  is_over boolean not null default false -- True if no slot comes after those that are known
  overlap text not null -- What a slot does while a run before is open
  catch_up text not null -- Which of the slots that are late by more than a minute start a run
  workflow text not null -- Workflow of its runs
  queue text not null -- Queue of its runs
  run_version text not null default ''::text -- Version of the code that its runs are pinned to; empty = any
  slot_parameter text -- Parameter of the workflow that gets the slot; null = none
  paused_by text -- Who paused it
  why_paused text -- The reason
  last_run_key text -- Key of the run that it started last
  error text -- Trouble of its last slot, or the reason for which it cannot be evaluated; null = none
  spec jsonb not null -- What its slots are: {cron, every, offset, tz, not_on, only_on, start_at, end_at}
  labels jsonb -- Labels of its runs, beside the name of the schedule
  declared jsonb -- As the code last declared it; null = no code did
  input json not null -- Input of its runs, without the slot
  upcoming timestamp with time zone[] not null default '{}'::timestamp with time zone[] -- The next slots, in their order
  buffered timestamp with time zone[] not null default '{}'::timestamp with time zone[] -- Slots that wait for the end of a run before, in their order
  open_chains bigint[] not null default '{}'::bigint[] -- The runs that it started last and that may be open
  constraint schedule_catch_up_check CHECK ((catch_up = ANY (ARRAY['skip'::text, 'latest'::text, 'all'::text])))
  constraint schedule_jitter_seconds_check CHECK (((jitter_seconds >= (0)::double precision) AND (jitter_seconds <= (86400)::double precision)))
  constraint schedule_max_catch_up_check CHECK (((max_catch_up >= 1) AND (max_catch_up <= 1000)))
  constraint schedule_name_check CHECK (((char_length(name) >= 1) AND (char_length(name) <= 90)))
  constraint schedule_overlap_check CHECK ((overlap = ANY (ARRAY['skip'::text, 'buffer_one'::text, 'buffer_all'::text, 'cancel_other'::text, 'allow'::text])))
  constraint schedule_pkey PRIMARY KEY (name)
  CREATE INDEX schedule_look_idx ON pgflow.schedule USING btree (look_at) WHERE (look_at IS NOT NULL)

table pgflow.schedule_change, owner pgflow_owner
  -- What was said of schedules, by whom and why; append only
  change_id bigint not null generated always as identity -- Number of the change
  at timestamp with time zone not null -- Its time
  schedule text not null -- Name of the schedule
  what text not null -- What was done
  said_by text not null -- A role, or the name that the caller gave
  why text -- The reason; null = none was given
  detail jsonb -- What it was set to, the run that was started, or the slots that were backfilled
  constraint schedule_change_pkey PRIMARY KEY (change_id)
  constraint schedule_change_what_check CHECK ((what = ANY (ARRAY['set'::text, 'declared'::text, 'paused'::text, 'resumed'::text, 'triggered'::text, 'backfilled'::text, 'removed'::text])))
  CREATE INDEX schedule_change_name_idx ON pgflow.schedule_change USING btree (schedule, change_id)

table pgflow.schedule_declaration, owner pgflow_owner
  -- Which worker's code declares which schedule; rows of workers that are gone mean nothing
  declared_at timestamp with time zone -- When a living worker first said the same; null = nothing was said yet
  worker_id integer not null -- The worker
  schedule text not null -- Name of the schedule
  declared jsonb -- What its code says of the schedule
  constraint schedule_declaration_pkey PRIMARY KEY (schedule, worker_id)

table pgflow.schedule_state, owner pgflow_owner
  -- Who looks after the schedules: one row
  with fillfactor=50
  fleet bigint -- Hash of the workers among whose declarations the newest were last chosen; null = something was declared since
  kept_until timestamp with time zone -- Until then the keeper must have looked again, else another worker takes over
  keeper integer -- The worker that looks when a slot is due; the others only see whether it still does
  is_the_only boolean not null default true -- True: there is one row
  constraint schedule_state_is_the_only_check CHECK (is_the_only)
  constraint schedule_state_pkey PRIMARY KEY (is_the_only)

table pgflow.seal, owner pgflow_owner
  -- Hash chain of each run: one row for each round that found something new in its journal
  run_id bigint not null -- The run
  round bigint not null -- The round that sealed it
  sealed_at timestamp with time zone not null -- Time of the round
  dropped_at timestamp with time zone -- When the history of the run was removed; null = it is there
  upto_seq integer not null -- The last unit that the chain covers; 0 = none
  hash bytea not null -- Hash of the seal before it, the units since, and the outcome
  outcome_hash bytea -- Hash of the outcome; null = the run was open, or not all of it is sealed yet
  constraint seal_pkey PRIMARY KEY (run_id, round)

table pgflow.seal_day, owner pgflow_owner
  -- Days that are over: the Merkle root over the roots of their rounds, chained from day to day
  day date not null -- The day, in UTC
  first_round bigint not null -- Its first round
  last_round bigint not null -- Its last round
  closed_at timestamp with time zone not null -- When the root was computed
  root bytea not null -- Merkle root over the roots of its rounds
  head bytea not null -- Hash of the head of the day before, the day and its root
  constraint seal_day_pkey PRIMARY KEY (day)

table pgflow.seal_pending, owner pgflow_owner
  -- Runs that may still grow, in the order in which the sealer looks at them: one row of its own, and one for each who asked for another look
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000
  run_id bigint not null -- The run
  ask bigint not null generated always as identity -- Number of the row: no two ask for the same, so nobody waits for anybody, and who asks while the sealer looks is not forgotten
  constraint seal_pending_pkey PRIMARY KEY (run_id, ask)

table pgflow.seal_round, owner pgflow_owner
  -- Rounds of the sealer, numbered without a gap: the Merkle root over the seals of each
  round bigint not null -- Number of the round
  sealed_at timestamp with time zone not null -- Its time, which never goes back
  dropped_at timestamp with time zone -- When its seals were removed, with the history of all their runs; null = they are there
  day date not null -- Day of that time, in UTC
  root bytea not null -- Merkle root over its seals, and behind them its evidence
  runs bigint[] not null -- The runs of its seals, in the order of the leaves
  constraint seal_round_pkey PRIMARY KEY (round)

table pgflow.seal_state, owner pgflow_owner
  -- Progress of the sealer: one row
  with fillfactor=50
  is_the_only boolean not null default true -- True: there is one row
  is_on boolean not null default false -- True if workers are to seal
  passed_run_id bigint not null default 0 -- Every run up to this number is sealed, or pending
  next_run_id bigint -- How far it goes next, once nobody can start a run with such a number any more; null = not known
  waits_for text[] -- Transactions that may yet start one
  looked_upto bigint not null default 0 -- The pending run that was looked at last
  cycle_began_at timestamp with time zone -- When it last began with the first of those
  next_look_at timestamp with time zone -- When the next round is due
  said_by text -- Who switched sealing on or off; null = nobody
  said_at timestamp with time zone -- When
  constraint seal_state_is_the_only_check CHECK (is_the_only)
  constraint seal_state_pkey PRIMARY KEY (is_the_only)

table pgflow.sent_key, owner pgflow_owner
  -- Idempotency keys of messages, for as long as the history of their run: the same key to the same run is one message
  chain_id bigint not null -- The chain that it was sent to
  message_id bigint -- The message that was sent under the key
  same_as bigint not null -- Hash of its name and payload: another message under the same key is refused
  key text not null -- The key that the sender gave it
  constraint sent_key_key_check CHECK (((char_length(key) >= 1) AND (char_length(key) <= 255)))
  constraint sent_key_pkey PRIMARY KEY (chain_id, key)

table pgflow.signal, owner pgflow_owner
  -- Mailbox of a chain; senders only insert, the commit that consumes a message deletes it
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  signal_id bigint not null generated always as identity -- The number of the message: messages are taken in this order
  chain_id bigint not null -- The chain that it is for
  run_id bigint -- Result of a child, what became of an effect, verdict of a gate: the generation that it is for, with its call
  sent_at timestamp with time zone not null -- Time of sending
  call integer -- Result of a child: number of the parent's call that started it; word of an effect: its call
  kind "char" not null -- s = signal, c = result of a child, x = cancel, p = pause, r = resume, t = retry, e = what became of an effect, g = the verdict of a gate, l = what became of the wait for a lock, u = an update
  name text not null -- Name of the signal, or of what is asked
  has_had_its_try boolean -- True of a cancel that has brought on a run that was paused or stuck: if the run gets stuck again, it stays so
  sent_by text -- Sender: the name that was given, with the role of the session in brackets
  payload json -- Content of the message
  refusal jsonb -- Why the code could not take it, {error, code_hash}: the run was held for a person; null = nobody has tried, or it has been mended
  constraint signal_kind_check CHECK ((kind = ANY (ARRAY['c'::"char", 'e'::"char", 'g'::"char", 'l'::"char", 'p'::"char", 'r'::"char", 's'::"char", 't'::"char", 'u'::"char", 'x'::"char"])))
  constraint signal_name_check CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 255)))
  constraint signal_payload_check CHECK ((octet_length((payload)::text) <= 1114112))
  constraint signal_pkey PRIMARY KEY (chain_id, kind, name, signal_id)
  CREATE TRIGGER name_blobs AFTER INSERT ON pgflow.signal FOR EACH ROW WHEN ((strpos((new.payload)::text, '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('signal')

table pgflow.source, owner pgflow_owner
  -- The re-appliable SQL files (functions, triggers, views) and the hash of the text applied last
  name text not null -- Name of the file below sql/, without its suffix
  sha256 text not null -- Hash of the text that was applied last; another text is applied again
  applied_at timestamp with time zone not null default clock_timestamp() -- Time at which it was last applied
  constraint source_pkey PRIMARY KEY (name)

table pgflow.sparse_partition, owner pgflow_owner
  -- Partitions of the journal that are nearly empty and could not be shrunk yet
  name text not null -- Name of the table
  noticed_at timestamp with time zone not null -- Since when it is known to be nearly empty
  next_try_at timestamp with time zone not null -- When workers ask for its lock again
  units bigint not null -- How many rows it is kept for, by the last look or the last vacuum
  tries integer not null default 0 -- How often its lock was not to be had in time
  reason text not null -- busy = its lock was not to be had in time; units = too many rows to copy under a lock; vacuum = its dead rows are still there
  constraint sparse_partition_pkey PRIMARY KEY (name)
  constraint sparse_partition_reason_check CHECK ((reason = ANY (ARRAY['busy'::text, 'units'::text, 'vacuum'::text])))

table pgflow.spend, owner pgflow_owner
  -- What a pool has let in and what was spent, by period and unit
  with fillfactor=50, autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  period_at timestamp with time zone not null -- Beginning of the period; -infinity for a pool without
  soft_at timestamp with time zone -- Time at which it passed its soft threshold; null = it has not
  pool text not null -- The pool
  unit text not null -- The unit: usd, tokens, calls, seconds or another
  allowed numeric -- What may be spent in this period; null = any amount
  granted numeric not null default 0 -- The part of it that was granted for this period alone
  admitted numeric not null default 0 -- What was ever let in: charged, returned and reserved together
  charged numeric not null default 0 -- What was spent, within what is allowed
  returned numeric not null default 0 -- What was reserved and not spent
  reserved numeric not null default 0 -- What open calls have reserved and not spent yet
  overrun numeric not null default 0 -- What was spent beyond what is allowed, since a call cost more than it had reserved
  forgotten numeric not null default 0 -- What was spent by runs whose history has been removed
  constraint spend_balances CHECK ((admitted = ((charged + returned) + reserved)))
  constraint spend_is_bounded CHECK (((allowed IS NULL) OR ((charged + reserved) <= allowed)))
  constraint spend_is_full_before_it_overruns CHECK (((overrun = (0)::numeric) OR ((charged + reserved) = allowed)))
  constraint spend_is_positive CHECK ((LEAST(allowed, charged, returned, reserved, overrun, forgotten) >= (0)::numeric))
  constraint spend_pkey PRIMARY KEY (pool, period_at, unit)
  constraint spend_unit_check CHECK (((octet_length(unit) >= 1) AND (octet_length(unit) <= 63)))

table pgflow.step_beat, owner pgflow_owner
  -- Last sign of life of a long step, with details for its next attempt; gone when the run ends
  run_id bigint not null -- The run whose step it is
  call integer not null -- Number of the step's call
  attempt integer not null -- Number of the attempt
  beat_at timestamp with time zone not null -- Time of the last sign of life of the step
  details json -- Progress that the step reported; null = none
  constraint step_beat_details_check CHECK ((octet_length((details)::text) <= 65536))
  constraint step_beat_pkey PRIMARY KEY (run_id, call)

table pgflow.tenant_grant, owner pgflow_owner
  -- Which roles act for which tenants; a role is named, not numbered, so that a dump keeps its grants
  granted_at timestamp with time zone not null -- Time of the grant
  role text not null -- Name of the role, or of a group that it is a member of
  tenant pgflow.tenant_name not null -- The tenant
  granted_by text not null -- Role that granted it
  constraint tenant_grant_pkey PRIMARY KEY (role, tenant)
  constraint tenant_grant_tenant_check CHECK (((tenant)::text <> ''::text))

table pgflow.timer, owner pgflow_owner
  -- When a parked run must go on though nothing came: sleep, time-out, retry or start (call 0)
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  due_at timestamp with time zone not null -- Time at which the run must go on
  run_id bigint not null -- The parked run
  call integer not null -- Number of the call whose sleep, time-out or retry it is; 0 = the start
  constraint timer_pkey PRIMARY KEY (run_id, call)
  CREATE INDEX timer_due_idx ON pgflow.timer USING btree (due_at)

table pgflow.undelivered, owner pgflow_owner
  -- Messages that no run took: it had ended, or somebody took them out of its mailbox
  signal_id bigint not null -- The number that the message had in the mailbox
  chain_id bigint not null -- The chain that it was for
  run_id bigint -- Result of a child: the generation of the parent that started it
  replaced_in bigint -- The number that it had, which is that of the message in its place now
  sent_at timestamp with time zone not null -- Time of sending
  moved_at timestamp with time zone not null -- Time at which it was put aside
  call integer -- Result of a child: number of the parent's call that started it
  kind "char" not null -- As in the mailbox: s = signal, c = result of a child, x = cancel, p = pause, r = resume, t = retry, e = what became of an effect, u = an update
  reason text not null default 'ended'::text -- ended = the run had ended; dropped, replaced = somebody took it out of the mailbox
  name text not null -- Name of the signal, or of what was asked
  sent_by text -- Sender: the name that was given, with the role of the session in brackets
  moved_by text -- Who took it out of the mailbox; null = the run had ended
  why text -- The reason that was given
  payload json -- Content of the message
  constraint undelivered_moved_by_check CHECK ((char_length(moved_by) <= 255))
  constraint undelivered_pkey PRIMARY KEY (signal_id)
  constraint undelivered_reason_check CHECK ((reason = ANY (ARRAY['ended'::text, 'dropped'::text, 'replaced'::text])))
  constraint undelivered_why_check CHECK ((char_length(why) <= 4096))
  CREATE INDEX undelivered_chain_idx ON pgflow.undelivered USING btree (chain_id)

table pgflow.unit, owner pgflow_owner
  -- The journal, append only. seq is dense from 1; call numbers the durable calls in the order in which the code issued them
  partition by RANGE (run_id)
  run_id bigint not null -- The run whose journal it is
  token bigint not null -- Token of the lease that wrote it; 0 where no worker held the run
  at timestamp with time zone not null -- When it happened, on the database's clock; what now() showed to the workflow
  recorded_at timestamp with time zone not null -- When the commit wrote it
  due_at timestamp with time zone -- timer_started, attempt_failed: when the timer or the next attempt is due, set by the commit
  args_hash bigint -- Hash of the arguments, on step_completed of a transaction and on the kinds of the effect and decision ledgers
  seq integer not null -- Its place in the journal, from 1 without a gap
  call pgflow.unit_call not null -- Number of the call that it is about; 0 = the run itself
  kind pgflow.unit_letter not null -- Kind of event: see unit_kind
  name pgflow.unit_name -- Of the step, signal, workflow or stream that it is about; null where there is none
  key pgflow.unit_name -- Idempotency key, on the kinds of the effect and decision ledgers
  payload pgflow.unit_payload -- The encoder's exact text, hence json and not jsonb; the bound leaves 64 KiB around a value of 1 MiB
  starts json -- Bodies that this commit allows to start: [[call, class, name, ordinal or key, hash of arguments], ...]; or the body of another run that the unit has its result from
  constraint unit_pkey PRIMARY KEY (run_id, seq)
  CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON pgflow.unit FOR EACH STATEMENT EXECUTE FUNCTION pgflow.refuse_rewrite_()
  CREATE TRIGGER name_blobs AFTER INSERT ON pgflow.unit FOR EACH ROW WHEN ((strpos((new.payload)::text, '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('unit')

table pgflow.unit_0, owner pgflow_owner
  with autovacuum_vacuum_insert_scale_factor=0.1
  partition of pgflow.unit FOR VALUES FROM ('0') TO ('5000000')
  CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON pgflow.unit_0 FOR EACH STATEMENT EXECUTE FUNCTION pgflow.refuse_rewrite_()
  CREATE TRIGGER name_blobs AFTER INSERT ON pgflow.unit_0 FOR EACH ROW WHEN ((strpos((new.payload)::text, '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('unit')

table pgflow.unit_1, owner pgflow_owner
  with autovacuum_vacuum_insert_scale_factor=0.1
  partition of pgflow.unit FOR VALUES FROM ('5000000') TO ('10000000')
  CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON pgflow.unit_1 FOR EACH STATEMENT EXECUTE FUNCTION pgflow.refuse_rewrite_()
  CREATE TRIGGER name_blobs AFTER INSERT ON pgflow.unit_1 FOR EACH ROW WHEN ((strpos((new.payload)::text, '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('unit')

table pgflow.unit_2, owner pgflow_owner
  with autovacuum_vacuum_insert_scale_factor=0.1
  partition of pgflow.unit FOR VALUES FROM ('10000000') TO ('15000000')
  CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON pgflow.unit_2 FOR EACH STATEMENT EXECUTE FUNCTION pgflow.refuse_rewrite_()
  CREATE TRIGGER name_blobs AFTER INSERT ON pgflow.unit_2 FOR EACH ROW WHEN ((strpos((new.payload)::text, '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('unit')

table pgflow.unit_3, owner pgflow_owner
  with autovacuum_vacuum_insert_scale_factor=0.1
  partition of pgflow.unit FOR VALUES FROM ('15000000') TO ('20000000')
  CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON pgflow.unit_3 FOR EACH STATEMENT EXECUTE FUNCTION pgflow.refuse_rewrite_()
  CREATE TRIGGER name_blobs AFTER INSERT ON pgflow.unit_3 FOR EACH ROW WHEN ((strpos((new.payload)::text, '"blob"'::text) > 0)) EXECUTE FUNCTION pgflow.name_blobs_('unit')

table pgflow.unit_kind, owner pgflow_owner
  -- The closed list of unit kinds: name, whether it ends its call, and who writes it
  kind "char" not null -- The one character that it has in the journal
  name text not null -- Name in the view timeline
  is_terminal boolean not null -- True if a unit of this kind is the outcome of its call
  written_by text not null -- Functions that write it, and the occasion
  constraint unit_kind_name_key UNIQUE (name)
  constraint unit_kind_pkey PRIMARY KEY (kind)

table pgflow.update_asker, owner pgflow_owner
  -- Runs that wait for the answer of an update: deleted by the transaction that sends it to them
  chain_id bigint not null -- The chain that is asked
  reply_to bigint not null -- The chain that gets the answer
  update_id text not null -- Id of the update
  reply_as text not null -- Name of the signal with the answer
  constraint update_asker_pkey PRIMARY KEY (chain_id, update_id, reply_to, reply_as)
  constraint update_asker_reply_as_check CHECK (((octet_length(reply_as) >= 1) AND (octet_length(reply_as) <= 255)))

table pgflow.wait, owner pgflow_owner
  -- What a parked run waits for: s = a signal of that name; c = the result of a child of one of these calls (one row for all); e = what became of an effect; g = the answer of a gate; l = a lock; u = an update
  with autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0
  run_id bigint not null -- The parked run
  call integer not null -- Number of the call that waits; of children, the first of those calls
  kind "char" not null -- s = for a signal, c = for the result of a child, e = for word of an effect or obligation, g = for the answer of a gate, l = for a lock, u = for an update
  name text not null -- Name of the signal, key of the lock, or child
  calls integer[] -- Numbers of the calls that wait for a child; null where it is for a signal
  constraint wait_check CHECK (((kind = 'c'::"char") = (calls IS NOT NULL)))
  constraint wait_kind_check CHECK ((kind = ANY (ARRAY['c'::"char", 'e'::"char", 'g'::"char", 'l'::"char", 's'::"char", 'u'::"char"])))
  constraint wait_name_check CHECK ((octet_length(name) <= 255))
  constraint wait_pkey PRIMARY KEY (run_id, call)

table pgflow.worker, owner pgflow_owner
  -- One row a worker process; its beat is the only sign of life that counts
  with fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=100, autovacuum_vacuum_cost_delay=0
  worker_id integer not null generated always as identity -- The number of the worker, never used again
  pid integer not null -- Number of its process on its host
  beat bigint not null default 0 -- Counts up while it lives; others watch whether it moves
  beat_at timestamp with time zone not null -- Time at which it last counted up, for people: nothing is decided by it
  started_at timestamp with time zone not null -- Time at which it announced itself
  concurrency integer not null -- Most runs that it holds at once
  lost_threads integer not null default 0 -- Threads at bodies that nobody waits for any more
  stopping boolean not null default false -- True once it takes no further runs
  host text not null -- Name of the machine it runs on
  version text not null -- Version of pgflow-engine that it runs, its schema and a digest of its files
  stamp text -- Comment of the schema that its code would install; null = it did not say so
  queues text[] not null -- Queues that it serves
  constraint worker_pkey PRIMARY KEY (worker_id)

table pgflow.worker_code, owner pgflow_owner
  -- What code the workers have that count as alive
  worker_id integer not null -- The worker
  code_id integer not null -- The code that it has
  constraint worker_code_pkey PRIMARY KEY (worker_id, code_id)

view pgflow.batches, owner pgflow_owner
  -- Batches: runs that begin once all their members have ended
  tenant text -- Tenant of the run that waits
  key text -- Key of the run that waits
  workflow text -- Its workflow
  opened_at timestamp with time zone -- Time at which its first members were named
  begun_at timestamp with time zone -- Time at which all had ended, or it had been cancelled; null = it waits
  is_whole boolean -- True once all members are named
  runs bigint -- Members
  passed bigint -- Members before the first that is open, in the order in which they were named; count_batch() counts all that have ended
  on_failure text -- Workflow of the run that begins with the first failure; null = none does
  failed_at timestamp with time zone -- Time at which the first failure was seen
  first_failed text -- Key of the member that had failed then
  failure_key text -- Key of the run that has begun with it
  failure_trouble text -- SQLSTATE with which its start was refused
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.broken_locks, owner pgflow_owner
  -- Locks that an operator took from their holders
  key text -- Name of what was locked
  fence bigint -- The number of the time that it had been won
  holder text -- Key of the run, or the name that plain code gave
  broken_at timestamp with time zone -- Time at which it was taken away
  broken_by text -- Name of the operator who took it away, with the role of the session in brackets
  why text -- Reason given by the operator
  run_id bigint -- The number of the run; null = plain code
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.budgets, owner pgflow_owner
  -- Budgets: what each pool allows in its current period, and what of that is spent or reserved, by unit
  pool text -- Name of the pool
  unit text -- The unit: usd, tokens, calls, seconds or another
  period_at timestamp with time zone -- Beginning of the period; null = nothing was drawn in it yet, or the pool has no periods
  per text -- Calendar period after which it is full again; null = never
  tz text -- Time zone of that calendar
  allowed numeric -- Most that may be spent in the period; null = any amount
  charged numeric -- Amount that was spent
  reserved numeric -- Amount that open calls have reserved and not spent yet
  remaining numeric -- Amount that can still be admitted; null = any amount
  overrun numeric -- Part of the charges that is beyond the limit, since calls cost more than they had reserved
  returned numeric -- Amount that was reserved and not spent
  parent text -- The pool that it draws on; null = none
  is_hard boolean -- True if no step of a run under it is licensed once it is used up or revoked
  soft numeric -- Fraction of the limit from which runs get a signal; null = no signal
  soft_at timestamp with time zone -- Time at which it passed that part; null = it has not
  revoked_at timestamp with time zone -- Time since which it admits nothing; null = it does
  revoked_by text -- Author of the revocation, with the role of the session in brackets
  revoked_why text -- The reason given
  made_at timestamp with time zone -- Time at which it was made
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.charges, owner pgflow_owner
  -- Charges: what runs have spent, on which step, decision and model, and out of which pool
  key text -- Key of the run
  charged_at timestamp with time zone -- Time of the commit that recorded it
  step text -- Name of the step whose body spent it; null = the code of the workflow did
  call integer -- Number of the call, in the order in which the code made them
  model text -- The model that was paid; null = none is named
  decision text -- Key of the decision that it was spent on, or that its step rests on; null = none
  pool text -- The pool that it was drawn on; null = the run has none
  pools text[] -- That pool and those above it
  usd numeric -- Dollars; null = none
  tokens numeric -- Tokens; null = none
  amounts jsonb -- All of it, by unit
  workflow text -- Name of the workflow
  generation integer -- Generation of the run that spent it
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of that generation
  seq integer -- Place of its unit in the journal
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.decisions, owner pgflow_owner
  -- Decisions: each choice with its reasons, as it was recorded once
  key text -- Key of the run
  decision text -- Its own key, which the keys of what rests on it begin with
  name text -- Name of the decision
  value json -- Value that was chosen
  why text -- The reason given
  evidence json -- Evidence that it rested on
  alternatives json -- Alternatives to it
  policy text -- The policy that it followed; null = none is named
  model text -- The model that chose; null = none is named
  usage json -- Cost of the choice; null = none was recorded
  decided_at timestamp with time zone -- Time of the choice
  seq integer -- Its place in the journal
  call integer -- Number of the call, in the order in which the code made them
  generation integer -- Generation of the run that decided
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of that generation
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.deliveries, owner pgflow_owner
  -- Events that a relay could not deliver at once: they wait for a try, or are dead
  relay text -- Name of the relay
  event_id bigint -- The number of the event
  state text -- waiting for the next attempt, or dead until redeliver_events
  topic text -- Topic of the event
  key text -- Key of the event
  attempts integer -- Number of attempts so far; 0 = it waits behind another event of its key
  due_at timestamp with time zone -- Time of the next try; of a dead one, when it died
  error text -- Failure of the last try
  at timestamp with time zone -- Time of publishing
  payload json -- Content, as the encoder wrote it
  run_id bigint -- Number of the run that published it; null = no run
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.documents, owner pgflow_owner
  -- Documents, with those that have expired and were not removed yet
  collection text -- Name of the collection
  path text[] -- Names of folders, the outermost first, and a name in the last one
  value json -- Value, as it is stored
  created_at timestamp with time zone -- Time at which the path was written first
  updated_at timestamp with time zone -- Time of the last write
  expires_at timestamp with time zone -- Time at which it expires; null = never
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.effects, owner pgflow_owner
  -- Effects: each act on the outside, its request, its tries, its outcome and who stated that
  key text -- Key of the run
  effect text -- Its idempotency key: the same in every attempt
  name text -- Name of the effect
  status text -- intended, unknown, accepted, confirmed or failed
  risk text -- Means by which it can be taken back: reversible, compensable, irreversible
  request json -- Its arguments, by name
  result json -- Value that it returned, or that came with its confirmation; null unless it is confirmed
  error json -- Reason why it was not done; null unless it failed
  ref text -- The counterparty's reference under which it was accepted; null = it was not
  attempts bigint -- Number of times that it was allowed to act
  unknowns bigint -- Number of times that its outcome was unknown
  said_by text -- Last to state its outcome: settle, or the name of a person, with the role of the session in brackets; null = its own answer counted
  decision text -- Key of the decision that it rests on; null = none
  compensates text -- Key of the effect that it takes back; null = none
  policy_version integer -- The policy in force when it was let through; null = there was none
  intended_at timestamp with time zone -- Time at which its intent was recorded, before it acted
  closed_at timestamp with time zone -- Time at which its outcome was known; null = it is open
  seq integer -- Place of its intent in the journal
  call integer -- Number of the call, in the order in which the code made them
  generation integer -- Generation of the run that did it
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of that generation
  origin json -- Place where it was done, if a run that was rewound or forked was handed its result: run_id and seq of the intent there; null = here
  owed text -- Reason why a person must handle it: forced (the run was ended by force) or parent_forced; null = none
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.entities, owner pgflow_owner
  -- Entities and their state
  name text -- Name of the kind of entity
  key text -- Key of this one
  version bigint -- Number of changes so far
  state json -- Its state; null = its first, which only the code knows
  updated_at timestamp with time zone -- Time of the last change
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.entity_updates, owner pgflow_owner
  -- Every update of an entity, with its verdict: what was done to it, by whom and when
  name text -- Name of the kind of entity
  key text -- Key of the entity
  history_id bigint -- Numbers the updates of an entity in the order in which they were made
  version bigint -- Version of the entity after it
  at timestamp with time zone -- Time of the update
  update text -- Name of the update
  said_by text -- Author of the update: key of a run, or a name, with the role of the session in brackets
  args json -- Its arguments by their names
  verdict json -- Value that it returned; null = it was refused
  error json -- Reason for which it was refused; null = it was not
  state json -- The state after it; null = it changed nothing
  run_id bigint -- Number of the run that made the update; null = no run
  call integer -- Number of the call of that run
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.events, owner pgflow_owner
  -- Events that were published and are still kept
  event_id bigint -- The number of the event
  at timestamp with time zone -- Time of publishing
  topic text -- Topic, to which relays listen
  key text -- Events of one key come in their order; null = any order will do
  payload json -- Content, as the encoder wrote it
  run_id bigint -- Number of the run that published it; null = no run
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.gate_answers, owner pgflow_owner
  -- Answers at gates, open or closed
  gate text -- Key of the gate
  n integer -- Number of the answer at this gate, from 1
  key text -- Key of the run
  answered_at timestamp with time zone -- Time of the answer
  verdict text -- approve, reject, escalate or take_over; delegate = another may answer; expire = timed out
  answered_by text -- Name of the approver
  acting_as text[] -- Roles of the approver, as given by the app; null = none
  sent_by text -- Role of the session that sent it
  reason text -- The reason that was given; null = none
  hand_to text -- Name or role that it was escalated or delegated to; null = none
  value json -- Edited request, or the result of a take-over; null = none
  payload_hash text -- Hash of what was answered
  closes boolean -- True if it closed the gate
  refusal text -- Reason why the code could not take it, so that it does not count; null = it counts
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of the generation
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.gates, owner pgflow_owner
  -- Inbox: the gates that wait for an answer, with their approvers and requests
  gate text -- Key of the gate: what answer_gate takes
  key text -- Key of the run
  workflow text -- Name of its workflow
  name text -- Name of the gate
  asked_at timestamp with time zone -- Since when it is asked
  expires_at timestamp with time zone -- Time from which no answer counts; null = it waits for good
  approvers text[] -- Names or roles that may answer now; empty = anybody
  quorum integer -- Number of people who must approve
  answers json -- Answers so far: [{by, verdict, at, reason, to, value, refusal}, ...]
  request json -- The exact request, or the last edit of it
  payload_hash text -- Its hash, by which an answer is bound to it
  edited boolean -- True if an answer has edited it
  needs_value boolean -- True if an approval must bring a value
  shape json -- Shape of the value that an approval may bring, see sql/core/shape.sql; true = anything
  on_timeout text -- Verdict once the time is over: expire, reject, escalate or approve
  escalate text[] -- Names of those who are asked next, one after the other
  decision text -- Key of the decision that it rests on; null = none
  why text -- The reason of that decision
  evidence json -- The evidence of that decision
  path json -- Keys of the runs above the run and its own, the root first
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of the generation
  call integer -- Number of the call
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.lane_reasons, owner pgflow_owner
  -- Lanes, each with the reason why no worker takes its runs, but without the number of queued runs, which costs more to read
  lane_id integer -- Number of the lane
  queue text -- Name of the queue
  workflow text -- Name of the workflow
  version text -- Version of the code that its runs need; empty = any
  why text -- Reason why no worker takes queued runs; null = one does
  why_code text -- That reason as a code: queue_paused, no_worker, no_workflow or no_version
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.lanes, owner pgflow_owner
  -- Each workflow, and each version of one that runs are pinned to, of each queue: how much is queued, and why no worker takes it
  queue text -- Name of the queue
  workflow text -- Name of the workflow
  version text -- Version of the code that its runs need; empty = any
  queued bigint -- Runs that may be claimed
  oldest_queued_at timestamp with time zone -- Time since which the oldest of them may be claimed; null = none is queued
  why text -- Reason why no worker takes queued runs: the queue is paused, or none serves it, has the workflow or that version; null = one does
  lane_id integer -- Number of the lane
  why_code text -- That reason as a code: queue_paused, no_worker, no_workflow or no_version
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.legal_holds, owner pgflow_owner
  -- Runs under a legal hold, which nothing removes
  key text -- Key of the run
  why text -- The reason given
  held_at timestamp with time zone -- Time since which it is held
  held_by text -- Name of the person who asked for it
  tenant text -- Tenant of the run; empty where there is only one
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.locks, owner pgflow_owner
  -- Locks that are held, and how many wait for each
  key text -- Name of what is locked
  fence bigint -- The number of this time that it was won: greater than that of every holder of the key before
  holder text -- Key of the run that holds it, or the name that plain code gave
  is_shared boolean -- True if others may hold it too that share it
  since timestamp with time zone -- Time at which it was won
  expires_at timestamp with time zone -- Time from which it counts no more; null = as long as its run holds it
  waiters bigint -- Number of runs and of plain code that wait for it
  run_id bigint -- The number of the run; null = plain code
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.losses, owner pgflow_owner
  -- Losses by failovers of units that were acknowledged to workers
  loss_id bigint -- Number of the loss, for close_loss()
  noticed_at timestamp with time zone -- Time at which the worker noticed
  acknowledged_at timestamp with time zone -- Time at which the worker last learned the durable position of the lost server's log
  acknowledged_lsn pg_lsn -- Position up to which it was durable then; more may have been acknowledged since
  kept_lsn pg_lsn -- Position in that log up to which the server at hand had come when it took over; at most, if it was restarted since
  old_timeline integer -- Timeline of the lost server's log
  new_timeline integer -- Timeline of the log that goes on
  worker_id integer -- The worker that noticed
  host text -- Name of its machine
  pid integer -- Number of its process there
  run_count integer -- Runs that lost units acknowledged to this worker
  runs jsonb -- Those runs, up to a thousand: key, last acknowledged seq (0 = none), and a mark of an acknowledged end
  closed_at timestamp with time zone -- Time at which a person closed it; null = it is open
  closed_by text -- Name of the person who closed it, with the role of the session in brackets
  why text -- Reason that they gave
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.messages, owner pgflow_owner
  -- Signals in the mailboxes of runs: sent, and not taken yet
  key text -- Key of the run
  message bigint -- The number of the message: what drop_message, replace_message and requeue_message take
  signal text -- Name of the signal
  payload json -- Its payload
  sent_at timestamp with time zone -- Time of sending
  sent_by text -- Sender: the name that was given, with the role of the session in brackets
  refused text -- Reason why the code of the run could not take it, so that the run is stuck; null = nothing is wrong with it
  tenant text -- Tenant of the run; empty where there is only one
  chain_id bigint -- Number of the first run of the chain
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.obligations, owner pgflow_owner
  -- Owed: effects that are not closed, obligations that are neither discharged nor waived, and what else is open
  key text -- Key of the run
  kind text -- effect, gate or obligation
  name text -- Of the effect, gate or obligation
  state text -- Of an effect: intended, unknown, absent, accepted; or uncompensated: it was done and nothing will undo it. Of an obligation: open, or breached once it was due
  opened_at timestamp with time zone -- Since when it is owed
  due_at timestamp with time zone -- Time at which the engine looks after it next, or it should be closed; null = no time is set
  owed_to text -- Name of the creditor; null = not given
  effect text -- Key of the effect, gate or obligation: what settle_effect takes, answer_gate, and discharge
  ref text -- The counterparty's reference, for confirm_effect
  detail jsonb -- Notice for the person who closes it; of an obligation, the facts recorded by its code
  tenant text -- Tenant of the run; empty where there is only one
  call integer -- Number of the call
  run_id bigint -- The number of that generation
  paged_at timestamp with time zone -- Time of the last page about it (app.pager); null = none
  reason text -- Reason why a person must see to it: forced (its run was ended by force) or parent_forced (its run has completed, its parent was ended by force), failed or cancelled (its run ended so, and owes it still); null = its run does
  beat_at timestamp with time zone -- Time of the last beat of an accepted effect, or of its acceptance; null = it has promised none
  beat_details json -- Details of the last beat that had any; null = none did
  silent_at timestamp with time zone -- Time from which its outcome is unknown if no further beat comes; null = it has promised none
  holder text -- Whom it was transferred to, outside of the run; null = the run holds it
  outlives boolean -- True if its run need not wait until it is closed
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.orders, owner pgflow_owner
  -- Cancels, pauses, resumes and retries that were asked for, and that no worker has taken yet
  key text -- Key of the run
  verb text -- cancel, pause, resume or retry
  why text -- The reason that was given
  sent_at timestamp with time zone -- Time at which it was asked for
  sent_by text -- Sender: the name that was given, with the role of the session in brackets; pgflow = itself
  tenant text -- Tenant of the run; empty where there is only one
  chain_id bigint -- Number of the first run of the chain
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.own_batches, owner pgflow_owner
  -- Rows of the view batches that are of a tenant of the session
  with security_barrier=true
  tenant text
  key text
  workflow text
  opened_at timestamp with time zone
  begun_at timestamp with time zone
  is_whole boolean
  runs bigint
  passed bigint
  on_failure text
  failed_at timestamp with time zone
  first_failed text
  failure_key text
  failure_trouble text
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_charges, owner pgflow_owner
  -- Rows of the view charges that are of a tenant of the session
  with security_barrier=true
  key text
  charged_at timestamp with time zone
  step text
  call integer
  model text
  decision text
  pool text
  pools text[]
  usd numeric
  tokens numeric
  amounts jsonb
  workflow text
  generation integer
  tenant text
  run_id bigint
  seq integer
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_decisions, owner pgflow_owner
  -- Rows of the view decisions that are of a tenant of the session
  with security_barrier=true
  key text
  decision text
  name text
  value json
  why text
  evidence json
  alternatives json
  policy text
  model text
  usage json
  decided_at timestamp with time zone
  seq integer
  call integer
  generation integer
  tenant text
  run_id bigint
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_effects, owner pgflow_owner
  -- Rows of the view effects that are of a tenant of the session
  with security_barrier=true
  key text
  effect text
  name text
  status text
  risk text
  request json
  result json
  error json
  ref text
  attempts bigint
  unknowns bigint
  said_by text
  decision text
  compensates text
  policy_version integer
  intended_at timestamp with time zone
  closed_at timestamp with time zone
  seq integer
  call integer
  generation integer
  tenant text
  run_id bigint
  origin json
  owed text
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_gate_answers, owner pgflow_owner
  -- Rows of the view gate_answers that are of a tenant of the session
  with security_barrier=true
  gate text
  n integer
  key text
  answered_at timestamp with time zone
  verdict text
  answered_by text
  acting_as text[]
  sent_by text
  reason text
  hand_to text
  value json
  payload_hash text
  closes boolean
  refusal text
  tenant text
  run_id bigint
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_gates, owner pgflow_owner
  -- Rows of the view gates that are of a tenant of the session
  with security_barrier=true
  gate text
  key text
  workflow text
  name text
  asked_at timestamp with time zone
  expires_at timestamp with time zone
  approvers text[]
  quorum integer
  answers json
  request json
  payload_hash text
  edited boolean
  needs_value boolean
  shape json
  on_timeout text
  escalate text[]
  decision text
  why text
  evidence json
  path json
  tenant text
  run_id bigint
  call integer
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_legal_holds, owner pgflow_owner
  -- Rows of the view legal_holds that are of a tenant of the session
  with security_barrier=true
  key text
  why text
  held_at timestamp with time zone
  held_by text
  tenant text
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_messages, owner pgflow_owner
  -- Rows of the view messages that are of a tenant of the session
  with security_barrier=true
  key text
  message bigint
  signal text
  payload json
  sent_at timestamp with time zone
  sent_by text
  refused text
  tenant text
  chain_id bigint
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_obligations, owner pgflow_owner
  -- Rows of the view obligations that are of a tenant of the session
  with security_barrier=true
  key text
  kind text
  name text
  state text
  opened_at timestamp with time zone
  due_at timestamp with time zone
  owed_to text
  effect text
  ref text
  detail jsonb
  tenant text
  call integer
  run_id bigint
  paged_at timestamp with time zone
  reason text
  beat_at timestamp with time zone
  beat_details json
  silent_at timestamp with time zone
  holder text
  outlives boolean
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_orders, owner pgflow_owner
  -- Rows of the view orders that are of a tenant of the session
  with security_barrier=true
  key text
  verb text
  why text
  sent_at timestamp with time zone
  sent_by text
  tenant text
  chain_id bigint
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_provenance, owner pgflow_owner
  -- Rows of the view provenance that are of a tenant of the session
  with security_barrier=true
  key text
  decision text
  decided text
  why text
  evidence json
  decided_at timestamp with time zone
  act text
  name text
  act_key text
  status text
  compensated_by text
  compensation text
  tenant text
  run_id bigint
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_repeated_steps, owner pgflow_owner
  -- Rows of the view repeated_steps that are of a tenant of the session
  with security_barrier=true
  key text
  call integer
  step text
  status text
  attempts bigint
  started_at timestamp with time zone
  ended_at timestamp with time zone
  idempotency_key text
  output json
  error json
  tenant text
  run_id bigint
  is_inherited boolean
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_runs, owner pgflow_owner
  -- Rows of the view runs that are of a tenant of the session
  with security_barrier=true
  key text
  status text
  workflow text
  queue text
  reason text
  priority smallint
  created_at timestamp with time zone
  since timestamp with time zone
  run_at timestamp with time zone
  deadline_at timestamp with time zone
  finished_at timestamp with time zone
  attempt integer
  worker_id integer
  generation integer
  labels jsonb
  input json
  output json
  error json
  tenant text
  version text
  run_id bigint
  chain_id bigint
  parent_run_id bigint
  origin_key text
  origin_generation integer
  origin_seq integer
  origin_run_id bigint
  reason_code text
  reason_detail json
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_seals, owner pgflow_owner
  -- Rows of the view seals that are of a tenant of the session
  with security_barrier=true
  key text
  generation integer
  tenant text
  run_id bigint
  round bigint
  upto_seq integer
  has_ended boolean
  hash text
  sealed_at timestamp with time zone
  day date
  dropped_at timestamp with time zone
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_steps, owner pgflow_owner
  -- Rows of the view steps that are of a tenant of the session
  with security_barrier=true
  key text
  call integer
  step text
  status text
  attempts bigint
  started_at timestamp with time zone
  ended_at timestamp with time zone
  idempotency_key text
  output json
  error json
  tenant text
  run_id bigint
  is_inherited boolean
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_tenant_grants, owner pgflow_owner
  -- Rows of the view tenant_grants that are of a tenant of the session
  with security_barrier=true
  role text
  tenant text
  granted_at timestamp with time zone
  granted_by text
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_timeline, owner pgflow_owner
  -- Rows of the view timeline that are of a tenant of the session
  with security_barrier=true
  key text
  generation integer
  seq integer
  call integer
  event text
  name text
  at timestamp with time zone
  recorded_at timestamp with time zone
  due_at timestamp with time zone
  payload json
  starts json
  tenant text
  run_id bigint
  token bigint
  is_inherited boolean
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_traces, owner pgflow_owner
  -- Rows of the view traces that are of a tenant of the session
  with security_barrier=true
  run_id bigint
  tenant text
  root text
  trace_id text
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_undelivered_messages, owner pgflow_owner
  -- Rows of the view undelivered_messages that are of a tenant of the session
  with security_barrier=true
  key text
  message bigint
  signal text
  payload json
  reason text
  ended_as text
  sent_at timestamp with time zone
  sent_by text
  moved_at timestamp with time zone
  moved_by text
  why text
  replaced_in bigint
  tenant text
  chain_id bigint
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.own_updates, owner pgflow_owner
  -- Rows of the view updates that are of a tenant of the session
  with security_barrier=true
  key text
  update_id text
  update text
  status text
  sent_at timestamp with time zone
  sent_by text
  replied_at timestamp with time zone
  value json
  error json
  tenant text
  chain_id bigint
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_tenant
  grant select to pgflow_worker

view pgflow.partitions, owner pgflow_owner
  -- The partitions of the journal, how large each is, and why one that is nearly empty is still large
  partition text -- Name of the table in the schema pgflow
  first_run_id bigint -- The first run id that belongs here
  last_run_id bigint -- The last run id that belongs here
  bytes bigint -- Size on disk, with indexes
  units bigint -- Rows, by the last vacuum; null = none has been by
  kept_large text -- Reason why it has not been shrunk: busy = its lock was not to be had in time, units = too many rows, vacuum = its dead rows are still there; null = it is not nearly empty
  noticed_at timestamp with time zone -- Time since which it is known to be nearly empty
  tries integer -- Number of times that its lock was not to be had in time
  next_try_at timestamp with time zone -- Time at which workers try again
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.patches, owner pgflow_owner
  -- Each patch that a live worker's code or an open run knows: who took which side, and whether it may go
  workflow text -- Name of the workflow
  patch text -- Name of the change
  new_side bigint -- Open runs that took the new side
  old_side bigint -- Open runs that may have passed before the change, and so take the old side
  marked bigint -- Open runs whose journal holds the marker of patched(): the code must call patched() or deprecate_patch() for them
  workers bigint -- Live workers whose code names it
  deprecated boolean -- True if that code only deprecates it
  safe_to_deprecate boolean -- True if no open run can take the old side: the branch may go, and patched() become deprecate_patch()
  safe_to_remove boolean -- True if the call may go too
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.provenance, owner pgflow_owner
  -- From the facts to the act: evidence, decision, what rested on it, and what took that back
  key text -- Key of the run
  decision text -- Key of the decision
  decided text -- Name of the decision
  why text -- The reason given
  evidence json -- Evidence that it rested on
  decided_at timestamp with time zone -- Time of the decision
  act text -- effect or step; null = nothing rested on it
  name text -- Name of the effect or step
  act_key text -- Its idempotency key
  status text -- Status of the act
  compensated_by text -- Key of the effect that took it back; null = none
  compensation text -- Status of its compensation
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of the generation
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.queue_changes, owner pgflow_owner
  -- Rules that were set, pauses, resumptions and purges of queues: who, when and why
  changed_at timestamp with time zone -- Time of the change
  queue text -- Name of the queue
  what text -- set, paused, resumed or purged
  said jsonb -- The rules that were set, as given; null removes one. Of a purge, the number of runs
  why text -- The reason given; null = none
  changed_by text -- Author of the change, with the role of the session in brackets
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.queue_rules, owner pgflow_owner
  -- Rules of queues, as set_queue takes them
  queue text -- Name of the queue
  rules jsonb -- Its rules
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.queues, owner pgflow_owner
  -- Runs that stand, run and wait in each queue, and its limits
  queue text -- Name of the queue
  queued bigint -- Runs that may be claimed
  running bigint -- Runs that a worker holds
  waiting bigint -- Runs that wait for a signal, a child, a timer or their time to start
  paused bigint -- Paused runs
  stuck bigint -- Runs that need a person
  oldest_queued_at timestamp with time zone -- Time since which the oldest of the queued runs may be claimed; null = none is queued
  max_running integer -- Most runs that may be held at once over all workers; null = no limit
  max_deaths smallint -- After so many workers died holding a run that recorded nothing, it is stuck
  paused_at timestamp with time zone -- Time since which nothing is claimed from the queue; null = not paused
  refuses_unknown boolean -- True if starts of workflows that no worker has ever had are refused
  rules jsonb -- Its rules, as set_queue takes them
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.rates, owner pgflow_owner
  -- Counts of runs that were started, and that workers ended, in each minute of the last day: in all and by queue
  minute timestamp with time zone -- Beginning of the minute
  queue text -- Name of the queue; null = all of them
  started integer -- Runs that were started within the minute before the look
  completed integer -- Runs that completed
  failed integer -- Runs that failed
  cancelled integer -- Runs that were cancelled
  queued integer -- Runs that could be claimed at the look; null = there was none
  oldest_seconds real -- Time for which the oldest of them had waited; null = none was queued
  took integer[] -- Ends by the time from the start, of all queues: the first count is below 1.28 ms, and each four double the time; null = not counted
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.relay_changes, owner pgflow_owner
  -- Orders to relays, from their declaration to their removal: who, when and why
  changed_at timestamp with time zone -- Time of the command
  relay text -- Name of the relay
  what text -- declared, paused, resumed, replayed, redelivered or dropped
  said jsonb -- The event from which it goes on; or the one that is tried again, and how many; or topics and target
  why text -- The reason given; null = none
  changed_by text -- Author of the command, with the role of the session in brackets
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.relays, owner pgflow_owner
  -- Relays: the progress of each, and its obstacles
  name text -- Its name
  state text -- working, idle (no worker has it, or it has nothing to do), paused, or open: its target has failed too often
  topics text[] -- Topics that it listens to
  target text -- Target of its events, in words
  event_id bigint -- Its cursor: every event up to this number was delivered, or is a delivery
  horizon bigint -- No event up to this number can appear any more; slow transactions hold it
  lag bigint -- Events that it has yet to take; 10000 = so many or more
  oldest_at timestamp with time zone -- Time of the oldest of them; null = there is none
  retrying bigint -- Events that wait for another try, or behind one that does
  dead bigint -- Events that are not retried until redeliver_events
  delivered bigint -- Number of events that it has delivered
  failures integer -- Deliveries that failed since one last succeeded
  error text -- The last failure; null = none since the last success
  open_until timestamp with time zone -- The circuit is open until then
  paused_at timestamp with time zone -- Time at which an operator has paused it
  declared_at timestamp with time zone -- Time at which it was declared first
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.repeated_steps, owner pgflow_owner
  -- The steps that were begun more than once, of all runs: pgflow.steps where attempts > 1, found several times as fast
  key text -- Key of the run
  call integer -- Number of the call, in the order in which the code made them
  step text -- Name of the step
  status text -- started, completed, failed or abandoned
  attempts bigint -- Number of times that its body was begun, as far as is recorded: it ended, or the worker that began it was lost; more than 1 = it may have acted more than once
  started_at timestamp with time zone -- Time at which its body was first allowed to start; null where no leave is needed, as for a read
  ended_at timestamp with time zone -- Time at which it returned, failed for the last time or was given up; null = it has not
  idempotency_key text -- Answer of idempotency_key() in its body: the same in every attempt; null for a read
  output json -- Value that it returned, of those made anew the newest; null unless it completed
  error json -- The exception that it raised for the last time; null unless it failed
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of that generation
  is_inherited boolean -- True if it is a step of the run whose journal this one begins with
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.retention_rules, owner pgflow_owner
  -- For how long workers keep which runs; a condition that is null holds for all
  rule text -- Name of the rule
  keep_seconds double precision -- Seconds from the end of a family for which it is kept
  workflow text -- Workflow of the runs that it is for
  status text -- Status with which they ended: completed, failed or cancelled
  labels jsonb -- Labels that they have
  of_tenant text -- Their tenant
  set_at timestamp with time zone -- Time at which it was set
  set_by text -- Name of the setter
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.runs, owner pgflow_owner
  -- Every chain's newest run: status, why, since when, input, output, labels
  key text -- The key it was started with, or one made up for it
  status text -- queued, running, waiting, paused, stuck, completed, failed or cancelled
  workflow text -- Name of the workflow
  queue text -- Name of its queue
  reason text -- Reason of its status: the wait, the lack of a worker, the words of a pause or cancel, or the trouble; null = nothing to say
  priority smallint -- Lower numbers are claimed first, among runs of one workflow and queue
  created_at timestamp with time zone -- Time of the start
  since timestamp with time zone -- Time since which it has this status
  run_at timestamp with time zone -- Time at which it may begin, if that is later than its start
  deadline_at timestamp with time zone -- Time at which it is cancelled if it has not ended; null = never
  finished_at timestamp with time zone -- Time of the end; null = it has not ended
  attempt integer -- Claims since the run last made progress; null where it is waiting or has ended
  worker_id integer -- The worker that holds it; null = none does
  generation integer -- 1, and one more each time the run continued as new, was rewound or restarted
  labels jsonb -- Strings by name, to find runs by; null = none
  input json -- Arguments of the workflow, an object of parameter names
  output json -- Value that the workflow returned; null until it has completed
  error json -- The exception that it raised, or what is known of why it is stuck
  tenant text -- Tenant of the run; empty where there is only one
  version text -- Version of the code that it needs; empty = any
  run_id bigint -- The number of this generation
  chain_id bigint -- Number of the first run of the chain: the same for all generations
  parent_run_id bigint -- The run that started this one as its child; null = none
  origin_key text -- Key of the run whose journal this one begins with, of a fork another key; null = it began empty, or that history is gone
  origin_generation integer -- Generation of that run
  origin_seq integer -- Number of units it has from there; null = it began empty
  origin_run_id bigint -- The number of that generation
  reason_code text -- Code of that reason: queue_paused, no_worker, no_workflow, no_version or suspect of a queued run; gate, signal, effect, owes (obligations only), child, timer, replacement or batch of a waiting one; paused; the trouble of a stuck one; asked, deadline, expired, purged, replaced, parent_ended, parent_gave_up, parent_rewound, itself or imported of a cancelled one; null = nothing to say
  reason_detail json -- Detail of that reason: gates, signals, children, effects, obligations and until of the waits; deaths of a suspect run; by of a pause or cancel, and force; the facts of the trouble
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.schedule_changes, owner pgflow_owner
  -- Changes of schedules, by whom and why
  change_id bigint -- Number of the change
  at timestamp with time zone -- Its time
  schedule text -- Name of the schedule
  what text -- set, declared, paused, resumed, triggered, backfilled or removed
  said_by text -- Author of the change, with the role of the session in brackets
  why text -- The reason
  detail jsonb -- Its new settings, the run that was started, or the slots that were backfilled
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.schedules, owner pgflow_owner
  -- Schedules, what comes next, and what became of the slots before
  name text -- Its name, the first part of the keys of its runs
  workflow text -- Workflow of its runs
  queue text -- Queue of its runs
  spec jsonb -- Its slots: {cron, every, offset, tz, not_on, only_on, start_at, end_at}
  overlap text -- Action of a slot while a run before is open
  catch_up text -- Treatment of slots that are late by more than a minute
  max_catch_up integer -- Most late slots that are caught up at once: the newest
  jitter_seconds double precision -- Most seconds by which a slot is late on purpose
  state text -- active, paused, over (no slot is left), broken (it cannot be evaluated), or undeclared: no code of a living worker declares it any more, so it fires nothing
  due_at timestamp with time zone -- Time at which the next slot is due, its jitter included
  upcoming timestamp with time zone[] -- The next slots, as far as they are computed
  buffered timestamp with time zone[] -- Slots that wait for the end of a run before
  open_runs bigint -- Number of its newest runs that have not ended
  last_slot_at timestamp with time zone -- The last slot that was decided
  last_fired_at timestamp with time zone -- Time at which it last started a run
  last_run_key text -- Key of that run
  fired bigint -- Number of runs that it has started
  skipped bigint -- Number of slots that started nothing because a run before was open
  missed bigint -- Number of known slots that were late and not caught up, or failed to start
  error text -- Trouble of its last slot, or the reason for which it is broken
  error_at timestamp with time zone -- Time of that
  paused_at timestamp with time zone -- Time at which it was paused; null = it is not
  paused_by text -- Author of the pause, with the role of the session in brackets
  why_paused text -- The reason
  undeclared_at timestamp with time zone -- Time of a due slot without a declaration in code; null = declared
  is_declared boolean -- True if code declares it; false if it was set by hand
  created_at timestamp with time zone -- Time at which it was set first
  changed_at timestamp with time zone -- Time at which it was set last
  slot_parameter text -- Parameter of the workflow that gets the slot
  input json -- Input of its runs, without the slot
  priority integer -- Priority of its runs
  timeout_seconds double precision -- A run that is not over by then is cancelled
  labels jsonb -- Labels of its runs, beside the name of the schedule
  late_seconds double precision -- Seconds since the next slot has been due; 0 = it is not due yet
  read_at timestamp with time zone -- The present time on the database's clock
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.seal_lag, owner pgflow_owner
  -- Progress of the sealer: one row
  is_on boolean -- True if workers seal
  last_round bigint -- Number of the last round that sealed something; null = none has
  last_sealed_at timestamp with time zone -- Time of that round
  passed_run_id bigint -- Every run up to this number is sealed or pending
  runs_behind bigint -- Numbers of runs behind that one: those that it has not come to
  behind_since timestamp with time zone -- Start of the first of them; null = it has come to all
  cycle_began_at timestamp with time zone -- Time at which it last began to look at those that were open
  runs_pending bigint -- Number of runs that it has come to and that may still grow
  last_day date -- The last day that has its root; null = none has
  said_by text -- Author of the last switch of sealing, with the role of the session in brackets; null = never switched
  said_at timestamp with time zone -- Time of that
  is_late boolean -- True if it has not come to a run that started an hour ago, or to all open ones for a day
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.seals, owner pgflow_owner
  -- Seals of runs: up to which unit each goes, and its hash
  key text -- Key of the run; null = its history was removed
  generation integer -- Generation of the run
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of that generation
  round bigint -- The round that sealed it
  upto_seq integer -- The last unit that it covers; 0 = none
  has_ended boolean -- True if it covers the outcome too
  hash text -- Its hash, chained to the seal before it
  sealed_at timestamp with time zone -- Time of sealing
  day date -- Day of that time in UTC, whose root covers it once the day is over
  dropped_at timestamp with time zone -- Time at which the history of the run was removed; null = it is there
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.steps, owner pgflow_owner
  -- Each step of each run: how often it was tried, when, under which idempotency key, with what result. Page through many runs by run_id
  key text -- Key of the run
  call integer -- Number of the call, in the order in which the code made them
  step text -- Name of the step
  status text -- started, completed, failed or abandoned
  attempts bigint -- Number of times that its body was begun, as far as is recorded: it ended, or the worker that began it was lost; more than 1 = it may have acted more than once
  started_at timestamp with time zone -- Time at which its body was first allowed to start; null where no leave is needed, as for a read
  ended_at timestamp with time zone -- Time at which it returned, failed for the last time or was given up; null = it has not
  idempotency_key text -- Answer of idempotency_key() in its body: the same in every attempt; null for a read
  output json -- Value that it returned, of those made anew the newest; null unless it completed
  error json -- The exception that it raised for the last time; null unless it failed
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of that generation
  is_inherited boolean -- True if it is a step of the run whose journal this one begins with
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.tenant_grants, owner pgflow_owner
  -- Tenants that each login may act for
  role text -- Name of the role
  tenant text -- The tenant
  granted_at timestamp with time zone -- Time of the grant
  granted_by text -- Role that granted it
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.timeline, owner pgflow_owner
  -- The journal in words: what happened to a run, in order
  key text -- Key of the run
  generation integer -- Generation of the run in which it happened
  seq integer -- Its place in the journal of that generation, from 1 without a gap
  call integer -- Number of the call that it is about, in the order in which the code made them; 0 = the run itself
  event text -- Kind of event: one of the kinds of units, or stream_closed
  name text -- Of the step, signal, workflow or stream that it is about; null where there is none
  at timestamp with time zone -- Time of the event, as now() showed it to the workflow
  recorded_at timestamp with time zone -- Time at which the commit wrote it
  due_at timestamp with time zone -- Time at which the timer that it started, or the next attempt, is due; null = none
  payload json -- Its result, error, message or value
  starts json -- Bodies of steps that this commit allowed to start: [[call, class, name, ordinal or key, hash of arguments], ...]
  tenant text -- Tenant of the run; empty where there is only one
  run_id bigint -- The number of that generation
  token bigint -- Token of the lease that wrote it; 0 where no worker held the run, or where it is another run's
  is_inherited boolean -- True if it happened to the run whose journal this one begins with
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.traces, owner pgflow_owner
  -- Traces of runs, by which their spans and logs are found elsewhere
  run_id bigint -- The number of the run
  tenant text -- Tenant of the run; empty where there is only one
  root text -- UUID of its chain, of which pgflow makes a trace where it was started without one
  trace_id text -- Id of the trace with which it was started; null = it was started without one
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.triggers, owner pgflow_owner
  -- Triggers by which changes of tables start runs, and whether they are as they were
  name text -- Its name
  target text -- Table of the trigger; null = it was dropped
  definition text -- Hash of its declaration in the code
  state text -- installed, or altered since by hand, disabled, or removed though its function is still there
  hash text -- Hash of all that the catalog says of it
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.undelivered_messages, owner pgflow_owner
  -- Signals that no run took: the run had ended, or they were taken out of its mailbox
  key text -- Key of the run
  message bigint -- The number of the message: what requeue_message takes
  signal text -- Name of the signal
  payload json -- Its payload
  reason text -- ended: the run had ended; dropped or replaced: it was taken out of the mailbox
  ended_as text -- Status of the run that has ended; null = it is open
  sent_at timestamp with time zone -- Time of sending
  sent_by text -- Sender: the name that was given, with the role of the session in brackets
  moved_at timestamp with time zone -- Time at which it was put aside
  moved_by text -- Author of the order that took it out of the mailbox, with the role of the session in brackets; null = the run had ended
  why text -- The reason that was given; or why the code of the run could not take it
  replaced_in bigint -- The number of the message that has its place now; null = none has
  tenant text -- Tenant of the run; empty where there is only one
  chain_id bigint -- Number of the first run of the chain
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.updates, owner pgflow_owner
  -- Updates that were sent to runs, with their answers
  key text -- Key of the run
  update_id text -- Id of the update
  update text -- Name of its handler
  status text -- waiting; done, failed: its handler returned or raised; rejected: by its validator; refused: the run ended first, and the sender has asked
  sent_at timestamp with time zone -- Time of sending
  sent_by text -- Sender: the name that was given, with the role of the session in brackets
  replied_at timestamp with time zone -- Time of the answer; null = there is none
  value json -- Value that the handler returned
  error json -- The error that the handler or the validator raised
  tenant text -- Tenant of the run; empty where there is only one
  chain_id bigint -- Number of the first run of the chain
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.versions, owner pgflow_owner
  -- Each version of each workflow: which open runs may depend on it, who serves it, and whether it may go
  workflow text -- Name of the workflow, an old name included
  version text -- The version it was given, or the hash of its code
  pinned boolean -- True if its runs stay with it
  pinned_runs bigint -- Open runs that are pinned to it: only workers that have it claim them
  begun_runs bigint -- Other open runs that code may have worked on while this version was served: the code must still fit them
  workers bigint -- Live workers that have it
  first_at timestamp with time zone -- Time at which the first worker came that had it; null = none ever did
  last_at timestamp with time zone -- Time at which the last worker that had it went; null = one is there, or none ever was
  safe_to_remove boolean -- True if no open run can depend on it
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.workers, owner pgflow_owner
  -- The worker processes that count as alive
  worker_id integer -- The number of the worker
  host text -- Name of the machine it runs on
  pid integer -- Number of its process there
  queues text[] -- Queues that it serves
  concurrency integer -- Most runs that it holds at once
  running bigint -- Number of runs that it holds now
  stopping boolean -- True once it takes no further runs
  version text -- Version of pgflow-engine that it runs, its schema and a digest of its files
  started_at timestamp with time zone -- Time at which it announced itself
  beat_at timestamp with time zone -- Time of its last sign of life
  beat bigint -- Counts up while it lives; others watch whether it moves
  is_outdated boolean -- True if the schema has been upgraded past the code of the worker: it goes on, until you start the new version in its place
  lost_threads integer -- Threads whose step bodies still run after the worker stopped waiting for them
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

view pgflow.workflows, owner pgflow_owner
  -- Workflows in SQL: each version, and how many open runs have begun with it
  workflow text -- Name of the workflow
  version integer -- Number of the version, from 1
  is_current boolean -- True if runs begin with this version
  open_runs bigint -- Open runs that have begun with it
  definer name -- Role with whose rights its steps run
  signature text -- Name and parameters, as they were written
  parameters jsonb -- The parameters: [{name, type, value if it has a default}, ...]
  body text -- The text; null if you have neither the rights of its definer nor the right to see it
  function text -- The function that has the SQL of its steps
  hash text -- Hash of text, definer and search path: the same again is the same version
  created_at timestamp with time zone -- Time at which it was made
  created_by text -- Name of the session that made it
  dropped_at timestamp with time zone -- Time at which the workflow was dropped; null = it was not
  rights jsonb -- Roles by the right that they were granted; null = the default, which is all may start it
  grant select to pgflow_approver
  grant select to pgflow_auditor
  grant select to pgflow_client
  grant select to pgflow_operator
  grant select to pgflow_speaker
  grant select to pgflow_worker

function pgflow.act_on_breach_(debt pgflow.owed, is_over boolean, t timestamp with time zone) returns jsonb, owner pgflow_owner
  -- Does what was agreed on for the breach of an obligation; answers what is to be noted with it
  plpgsql volatile

function pgflow.act_rows_(list jsonb) returns TABLE(n integer, name text, risk text, request jsonb), owner pgflow_owner
  -- Rows of the protocol as columns: acts that the policy judges
  sql stable

function pgflow.acting_() returns oid[], owner pgflow_owner
  -- Definers of the steps that this transaction runs; empty outside of steps
  sql stable

function pgflow.acts_(run_id bigint, cut integer) returns TABLE(seq integer, call integer, what text, name text, state text, key text, args_hash bigint, payload json), owner pgflow_owner
  -- Acts of a journal after a cut: steps, transactions, effects and children, each with how far it came
  plpgsql stable

function pgflow.acts_as_(role text, actor text DEFAULT NULL::text) returns boolean, owner pgflow_owner
  -- True if a role, or the caller, is a database role or a member of it
  sql stable

function pgflow.add_blob_triggers_() returns void, owner pgflow_owner
  -- Has the tables of values note which blobs they name, unless they do
  plpgsql volatile

function pgflow.add_chunk(blob bigint, n integer, data bytea) returns void, owner pgflow_owner
  -- Adds a chunk to a blob that this transaction stores: the chunks 0, 1, ... of 262144 bytes each, the last of what is left. PF003 if there cannot be such a chunk, PF006 if the blob is not open here
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.add_counts_(one integer[], other integer[]) returns integer[], owner pgflow_owner
  -- Adds counts place by place; a missing one is 0
  sql immutable

function pgflow.add_event_partitions(ahead integer DEFAULT 3, width bigint DEFAULT 1000000) returns integer, owner pgflow_owner
  -- Makes partitions of the outbox until so many are ahead of the newest event; answers how many it made
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.add_partitions_(parent text, newest bigint, ahead integer, width bigint, indexed text DEFAULT NULL::text) returns SETOF text, owner pgflow_owner
  -- Makes partitions of a table until so many are ahead of its newest number, each with an index on these columns besides its key; answers their names
  plpgsql volatile

function pgflow.add_rates(ended json DEFAULT '[]'::json, took integer[] DEFAULT '{}'::integer[]) returns void, owner pgflow_owner
  -- Adds what a worker has ended to the counts of this minute; ended = [[lane_id, completed, failed, cancelled], ...], took = runs of each duration, as in pgflow.rates. Workers call it a few times a minute, whatever they do
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.add_unit_partitions(ahead integer DEFAULT 3, width bigint DEFAULT 5000000) returns integer, owner pgflow_owner
  -- Makes partitions of the journal until so many are ahead of the newest run; answers how many it made
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.admission_rows_(list jsonb) returns TABLE(n integer, call integer, name text, pool text, amounts jsonb, hard boolean, licence jsonb), owner pgflow_owner
  -- Objects of the protocol as columns: requests for admission to pools
  sql stable

function pgflow.admit_all_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb), owner pgflow_owner
  -- Admits the calls that runs of a batch ask for, or refuses them, one after the other: of each position the last seq then, and its units. The pools are locked
  plpgsql volatile
  set enable_seqscan=off

function pgflow.adopt_children_(origin bigint, cut integer, heir pgflow.run, t timestamp with time zone, INOUT seq integer) returns integer, owner pgflow_owner
  -- Hands to a run the children of the dropped part that have completed, with their results, or still go on; answers its last seq
  plpgsql volatile

function pgflow.adopt_effects_(origin bigint, cut integer, heir bigint, chain bigint, t timestamp with time zone, INOUT seq integer) returns integer, owner pgflow_owner
  -- Hands to a generation the effects of the dropped part that it must take back: those that are open with their units and what is owed; answers its last seq
  plpgsql volatile

function pgflow.adopt_obligations_(origin bigint, cut integer, heir bigint, token bigint, is_rewind boolean, t timestamp with time zone, INOUT seq integer) returns integer, owner pgflow_owner
  -- Hands the open obligations of the dropped part of another's journal to a generation, and posts the closed ones to it; returns its last seq
  plpgsql volatile
  set enable_seqscan=off

function pgflow.advance(worker_id integer, run_id bigint, token bigint, chain_id bigint, steps_per_commit integer DEFAULT 1, timed text DEFAULT 'run'::text) returns jsonb, owner pgflow_owner
  -- One transaction's worth of a run in SQL that a worker holds: up to so many steps, and what lies between them; answers its place (leased, parked, held, ended, lost) and chains for wake(); null = so many steps, nothing else. timed: leave = stops before a step that has a timeout and answers its seconds, armed = statement_timeout is set to them. Commit before anything else
  plpgsql volatile security definer
  set standard_conforming_strings=on
  set jit=off
  grant execute to pgflow_worker

function pgflow.advance_batch_(b pgflow.batch, max integer, t timestamp with time zone) returns integer, owner pgflow_owner
  -- Looks at up to max members of a locked batch, and lets its run begin if all have ended; answers its lane then
  plpgsql volatile
  set enable_seqscan=off

function pgflow.allow_(pool text, period_at timestamp with time zone, unit text, allowed numeric) returns void, owner pgflow_owner
  -- Sets what may be spent of a unit in a period, and what of the charges is beyond it; PF006 if open calls have reserved more. The pool is locked
  plpgsql volatile

function pgflow.alter_workflow(workflow text, version integer) returns void, owner pgflow_owner
  -- Has new runs of a workflow in SQL begin with another of its versions, such as the one before; runs that have begun keep theirs. PF001 if there is none
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.anchor() returns jsonb, owner pgflow_owner
  -- The roots and heads of all days, and the root of what is sealed since. Store it where no writer of this database has access
  sql volatile security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.answer_all_(questions jsonb, t timestamp with time zone, OUT answers jsonb, OUT to_wake bigint[], OUT lanes integer[]) returns record, owner pgflow_owner
  -- Answers the questions of the runs of a batch and changes their places, within commit_units
  plpgsql volatile

function pgflow.answer_gate(gate text, verdict text, payload_hash text DEFAULT NULL::text, value json DEFAULT NULL::json, reason text DEFAULT NULL::text, by text DEFAULT NULL::text, acting_as text[] DEFAULT NULL::text[], hand_to text DEFAULT NULL::text, valid_until timestamp with time zone DEFAULT NULL::timestamp with time zone) returns bigint, owner pgflow_owner
  -- Answers a gate, in any transaction: approve (value = the request as edited), reject, escalate (hand_to) or take_over (value = the result). by = who answers, acting_as = its roles. For a role of pgflow_speaker, which speaks for the users of an application, both are its word; all others answer as the role of their session, and act as roles that it is a member of (PF021). That role is kept beside. payload_hash binds the answer to what was shown: PF023 if that is another by now. valid_until = time from which it does not count (PF021). The first answer that closes the gate counts, and a later one is told who, when and what (PF022). PF021 if others are asked, PF003 if the value does not fit, PF001 if no open gate has the key. Answers the chain, for wake()
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_speaker

function pgflow.answer_kind_(kind text, questions jsonb, present integer[], looking integer[], quiet integer[], mailed integer[], pausing integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb, is_news boolean, place text, to_wake bigint[], lanes integer[], more jsonb), owner pgflow_owner
  -- Answers to one kind of thing that questions of a batch ask for, by position: units, news that keeps a run from parking, and changes of place
  plpgsql volatile
  set enable_seqscan=off

function pgflow.answer_news_(kind text, questions jsonb, looking integer[], quiet integer[], mailed integer[], pausing integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb, is_news boolean, place text, to_wake bigint[], lanes integer[], more jsonb), owner pgflow_owner
  -- Answers to one of the rarer kinds: force, locks, verdicts, updates and pauses
  plpgsql volatile
  set enable_seqscan=off

function pgflow.answered_rows_(list jsonb) returns TABLE(n integer, seq integer, call integer, kind "char", name text, payload json, due timestamp with time zone), owner pgflow_owner
  -- Rows of the protocol as columns: units that the database has decided and appended
  sql stable

function pgflow.answerer_(name text) returns text, owner pgflow_owner
  -- The name of the approver: by default the role of the session
  plpgsql stable

function pgflow.append_(run_id bigint, seq integer, call integer, kind "char", name text, payload json, token bigint, at timestamp with time zone, t timestamp with time zone) returns void, owner pgflow_owner
  -- Appends one unit that the database decided
  sql volatile

function pgflow.apply_controls_(chain bigint, me bigint, t timestamp with time zone, OUT woken_lane integer, OUT ended boolean, OUT looked boolean) returns record, owner pgflow_owner
  -- Does what people asked of a run that no worker holds; looked = its place was there to be locked
  plpgsql volatile
  set enable_seqscan=off

function pgflow.approvers_of_(asked pgflow.gate, t timestamp with time zone) returns text[], owner pgflow_owner
  -- Names and roles that may answer a gate at a time; empty = anybody
  plpgsql stable

function pgflow.as_compared_(value json) returns jsonb, owner pgflow_owner
  -- Stand-in for a value where two are compared: of an encoded one its keyed hash, since it looks different each time
  sql immutable

function pgflow.ask_flow_(INOUT f pgflow.flow_frame, worker_id integer, token bigint, chain bigint, question jsonb, units jsonb, OUT place text, OUT wake jsonb) returns record, owner pgflow_owner
  -- Commits units with a question, and folds both into the frame
  plpgsql volatile

function pgflow.ask_gates_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb), owner pgflow_owner
  -- Asks the gates that runs of a batch want asked: of each position with some the last seq then, and its units
  plpgsql volatile
  set enable_seqscan=off

function pgflow.ask_lock_(me bigint, chain bigint, call integer, key text, is_shared boolean, ttl interval, within bigint[], t timestamp with time zone, OUT fence bigint, OUT refused text, OUT is_new boolean, OUT to_wake bigint[]) returns record, owner pgflow_owner
  -- Asks for a lock: returns its fence if it is won at once, or the reason of a refusal; else the run waits in the queue, perhaps already since before (is_new)
  plpgsql volatile
  set enable_seqscan=off

function pgflow.ask_locks_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb, is_news boolean, to_wake bigint[]), owner pgflow_owner
  -- Asks for the locks that runs of a batch wait for, if nothing else has happened to them: of each position the last seq then, its units, and whether they say more than that it waits
  plpgsql volatile
  set enable_seqscan=off

function pgflow.assign_(f pgflow.flow_frame, variable text, value jsonb) returns pgflow.flow_frame, owner pgflow_owner
  -- Sets a variable, if there is one
  plpgsql immutable

function pgflow.at_most_(count integer) returns integer, owner pgflow_owner
  -- The limit of a query that a caller names; PF003 if it is below zero
  plpgsql immutable

function pgflow.attach_schedules(worker_id integer, names text[]) returns integer, owner pgflow_owner
  -- A worker says which schedules its code declares; answers how many of them no living worker had declared
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.await_end_of_(me bigint, old_chain bigint) returns void, owner pgflow_owner
  -- Cancels a run that has been replaced, if it is open, and parks the new one until it has ended
  plpgsql volatile

function pgflow.await_events_(questions jsonb, positions integer[], units jsonb[]) returns void, owner pgflow_owner
  -- Lets runs of a batch wait for the events that their questions name, and for no others
  plpgsql volatile
  set enable_seqscan=off

function pgflow.awaits_end_(run_id bigint) returns boolean, owner pgflow_owner
  -- True if a run must not begin yet: it replaces another, or has a batch, that has not ended
  sql stable

function pgflow.backfill_schedule(name text, slots timestamp with time zone[], overlap text DEFAULT 'buffer_all'::text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns TABLE(slot_at timestamp with time zone, run_key text, state text, lane_id integer), owner pgflow_owner
  -- Has past slots of a schedule start their runs: one after the other (overlap buffer_all), or all at once (allow). A slot that has a run gets no second one. Answers what became of each: started, buffered, or there. PF027 if there is no such schedule
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.bad_runs_(batch jsonb) returns jsonb, owner pgflow_owner
  -- Runs that a batch may not commit, [[run, verdict], ...], by the leases that it has locked; null = none
  sql volatile

function pgflow.balance_effects_() returns TABLE(run_id bigint, opened bigint, confirmed bigint, failed bigint, unknown bigint, accepted bigint, open bigint), owner pgflow_owner
  -- Effects of each run: the number intended, and the state of each
  sql stable

function pgflow.beat(worker_id integer, stopping boolean DEFAULT false) returns TABLE(alive boolean, mail bigint[], timeline integer, flushed bigint, recovered_to bigint, waits boolean), owner pgflow_owner
  -- Sign of life; returns whether the worker still counts as alive, its runs to cancel or pause, and the position of the log
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.beat_effect(ref text, details json DEFAULT NULL::json) returns void, owner pgflow_owner
  -- Records a heartbeat of the effect that was accepted under a reference, with details of its progress. PF001 if no such effect is open, PF006 if its beats stopped too long ago or were never promised
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.beat_step(run_id bigint, token bigint, call integer, attempt integer, details json) returns boolean, owner pgflow_owner
  -- A long step says that it lives and how far it is; false if the lease is lost
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.begin_again_(verb text, chain bigint, cut integer, from_step text, input json, edit json, effects text, children text, attempts integer, timeout_seconds double precision, why text, sent_by text, OUT run_id bigint, OUT generation integer, OUT lane_id integer, OUT seq integer) returns record, owner pgflow_owner
  -- Puts a new generation in the place of a chain's newest one, with its journal up to a cut
  plpgsql volatile

function pgflow.begin_batches_(max integer, t timestamp with time zone) returns integer[], owner pgflow_owner
  -- Parked -> ready for runs of whose batches all members have ended
  plpgsql volatile
  set enable_seqscan=off

function pgflow.begin_replacements_(max integer, t timestamp with time zone) returns integer[], owner pgflow_owner
  -- Parked -> ready for runs whose predecessors under their key have ended
  plpgsql volatile
  set enable_seqscan=off

function pgflow.begin_step(run_id bigint, token bigint, call integer, idle_timeout_ms integer DEFAULT 0, durable_seq integer DEFAULT 0) returns text, owner pgflow_owner
  -- First call of a transactional step's transaction: checks the lease and that the last unit is there, leaves a mark that only this transaction carries, and returns its number
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.begin_tick(queues text) returns boolean, owner pgflow_owner
  -- Keeps other exclusive ticks from these queues until the end of the transaction; false if one is at work on them
  sql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.blobs_in_(body text) returns SETOF bytea, owner pgflow_owner
  -- Digests of the blobs that a JSON text names
  plpgsql immutable strict

function pgflow.book_(units jsonb, t timestamp with time zone) returns void, owner pgflow_owner
  -- Keeps owed equal to the effect units that a commit appends, and the labels to those that runs set, and closes cancelled gates
  plpgsql volatile
  set enable_seqscan=off

function pgflow.book_beats_(units jsonb, t timestamp with time zone) returns void, owner pgflow_owner
  -- Starts watching the beats of effects that a commit accepts, or accepts again, and stops for those that it closes
  plpgsql volatile
  set enable_seqscan=off

function pgflow.book_obligations_(units jsonb, t timestamp with time zone) returns void, owner pgflow_owner
  -- Keeps what is owed equal to the obligations that the code opens and closes by the units of a commit
  plpgsql volatile
  set enable_seqscan=off

function pgflow.bound_names_(workflow text) returns void, owner pgflow_owner
  -- Refuses (PF003) a new name that no worker has ever had, where too many are there: they are kept for ever
  plpgsql stable

function pgflow.bound_waits_(seconds double precision) returns text, owner pgflow_owner
  -- Sets lock_timeout to so many seconds, unless it is shorter; answers what it was
  plpgsql volatile

function pgflow.break_lock(key text, why text, sent_by text DEFAULT NULL::text) returns integer, owner pgflow_owner
  -- Takes a lock away from its holders, and records author and reason; returns their number. A run gets LockLost at its next durable call in the block. For operators
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_operator

function pgflow.break_off_(f pgflow.flow_frame, error jsonb) returns pgflow.flow_frame, owner pgflow_owner
  -- The frame after an error: what was done is taken back from here on
  plpgsql immutable

function pgflow.bring_up_(heir pgflow.run, cut integer, edit json, note jsonb, was json, t timestamp with time zone) returns void, owner pgflow_owner
  -- Inserts a run that begins with the journal of another, with the unit that says who wanted it and why, and its place
  plpgsql volatile

function pgflow.call_rows_(list jsonb) returns TABLE(call integer), owner pgflow_owner
  -- Rows of the protocol as columns: calls
  sql stable

function pgflow.caller_() returns name, owner pgflow_owner
  -- Role whose rights the caller of a function has that runs with its owner's: in a step the definer of its workflow, else the one it has set, else that of the session
  sql stable

function pgflow.calls_of_(calls jsonb) returns int4multirange, owner pgflow_owner
  -- Numbers of calls as a worker names them: ranges as text, or [call, ...]
  sql immutable

function pgflow.cancel_children_(run_ids bigint[], t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Posts a cancel to the open children that end with these runs; answers their chains
  plpgsql volatile

function pgflow.cancel_run(key text, why text DEFAULT 'cancelled'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, force boolean DEFAULT false) returns bigint, owner pgflow_owner
  -- Asks for a run to be cancelled: its code may clean up. Takes effect once a worker looks, within its poll, or you call wake() after your commit; until then pgflow.orders has it, and pgflow.runs the run as it was. force does what force_cancel_run does, at once, if the caller may (else PF021)
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.cancel_unwanted_(questions jsonb, positions integer[]) returns bigint[], owner pgflow_owner
  -- Cancels the children that runs of a batch have given up; answers their chains
  plpgsql volatile

function pgflow.carried_children_(run_id bigint, heritage jsonb) returns jsonb, owner pgflow_owner
  -- Children that a run may ask for and be given: [[call, workflow, input as text, key unless it was made up, chain], ...]; null = none
  plpgsql stable

function pgflow.carried_saga_(chain bigint, generation integer) returns jsonb, owner pgflow_owner
  -- Effects of earlier generations that a generation must compensate if it fails: [[name, key, place of its code, request, result, reference, whether it is its own], ...]; null = none
  sql stable
  set enable_seqscan=off

function pgflow.carry_(origin bigint, cut integer, heir bigint) returns void, owner pgflow_owner
  -- Hands on what the dropped part knew of its steps and effects: results, and keys of steps that did not complete
  sql volatile

function pgflow.carry_locks_(me bigint, next_id bigint, t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Hands the locks of a run to the next generation, which has them when it asks for them; answers the chains to wake
  plpgsql volatile
  set enable_seqscan=off

function pgflow.caught_up_(s pgflow.schedule, due timestamp with time zone[], t timestamp with time zone) returns timestamp with time zone[], owner pgflow_owner
  -- Those of the due slots that start a run, though some of them are late
  sql stable

function pgflow.chain_(before bytea, segment bytea, upto_seq integer, outcome_hash bytea) returns bytea, owner pgflow_owner
  -- Hash of a seal: behind 02, the seal before it, the hash of the hashes of the units since, the last seq, and the outcome
  sql immutable

function pgflow.chain_of_(tenant text, key text) returns bigint, owner pgflow_owner
  -- The chain that a key names, or PF001
  plpgsql stable

function pgflow.changes_(before jsonb, after jsonb) returns jsonb, owner pgflow_owner
  -- The variables that have another value than before
  plpgsql immutable

function pgflow.charge_one_(me bigint, at_seq integer, clock timestamp with time zone, t timestamp with time zone) returns void, owner pgflow_owner
  -- Books what one unit says was spent: out of the reservation of its call, then out of the pool, then as overrun
  plpgsql volatile
  set enable_seqscan=off

function pgflow.check() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- The invariants that do not hold, one a row; empty = sound
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.check_acts_(run_id bigint, cut integer, effects text, is_fork boolean) returns text, owner pgflow_owner
  -- Refuses (PF020) to drop units that have acted unless effects says what becomes of it; returns reuse, repeat or compensate
  plpgsql stable

function pgflow.check_amounts_(amounts jsonb, what text) returns void, owner pgflow_owner
  -- Refuses (PF003) amounts that no pool can have
  plpgsql immutable

function pgflow.check_asked_(node pgflow.flow_node, value jsonb, definer oid) returns void, owner pgflow_owner
  -- Refuses (PF003, PF021) what a run in SQL cannot say, ask for or start
  plpgsql stable

function pgflow.check_balance_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- All that was opened in each ledger is closed or open, for each run and in total
  plpgsql volatile

function pgflow.check_batch_(runs jsonb) returns void, owner pgflow_owner
  -- Refuses (PF003) a batch with a key or an input that no run can have
  plpgsql immutable

function pgflow.check_beats_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Accepted effects that promised beats are watched
  plpgsql volatile

function pgflow.check_blobs_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Blobs that runs name are there, with all their chunks
  sql volatile

function pgflow.check_budgets_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- The sums of pools are those of the rows behind them
  plpgsql volatile

function pgflow.check_children_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Parents know their children, and hear of their ends
  plpgsql volatile

function pgflow.check_collect_(collect integer, max_wait_seconds double precision, input json, key text, if_taken text, run_at timestamp with time zone, budget jsonb, key_seconds double precision, debounce_seconds double precision) returns integer, owner pgflow_owner
  -- Refuses (PF003) what cannot be collected; answers how many items a start brings
  plpgsql immutable

function pgflow.check_collection_(collection text) returns void, owner pgflow_owner
  -- Raises PF003 for a collection that may not be written: one with a reserved name, or the record of commands to relays
  plpgsql stable

function pgflow.check_cut_(run_id bigint, cut integer, edit json, is_fork boolean) returns void, owner pgflow_owner
  -- Refuses (PF003) a cut that is not in the journal or that another run cannot begin with
  plpgsql stable

function pgflow.check_documents_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Documents have times that can be
  sql volatile

function pgflow.check_effects_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- The effects that are owed are those that the journal leaves open
  plpgsql volatile

function pgflow.check_ends_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Ended runs and the generations of a chain
  plpgsql volatile

function pgflow.check_entities_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- The history of each entity leads to its state, and agrees with the runs
  plpgsql volatile

function pgflow.check_event_waits_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Waits for events are of open runs, and no event was passed over
  plpgsql volatile

function pgflow.check_evidence_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Every row that is evidence is noted, and is as it was then
  sql volatile

function pgflow.check_fences_(run_id bigint, fences bigint[]) returns void, owner pgflow_owner
  -- Refuses (PF025) a run that does not hold these locks any more; it keeps them until the end of the transaction
  plpgsql volatile
  set enable_seqscan=off

function pgflow.check_flow_input_(flow_id integer, input jsonb) returns void, owner pgflow_owner
  -- Refuses (PF003) an input that the parameters do not take
  plpgsql stable

function pgflow.check_flows_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Frames of runs in SQL agree with their journals
  plpgsql volatile

function pgflow.check_form_(form text, wanted text, what text) returns void, owner pgflow_owner
  -- Refuses (PF003) a value whose json_typeof is not the one that is wanted, array or object
  plpgsql immutable

function pgflow.check_gates_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Gates asked are answered, expired, given up or open; what is open is owed, and its run waits for it
  plpgsql volatile

function pgflow.check_history_(history jsonb) returns void, owner pgflow_owner
  -- Refuses (PF003) a history that no run can have had
  plpgsql stable

function pgflow.check_if_taken_(if_taken text, run_at timestamp with time zone, key text, defaults json) returns void, owner pgflow_owner
  -- Refuses (PF003) options that need a key, or that exclude if_taken
  plpgsql immutable

function pgflow.check_input_(input json) returns void, owner pgflow_owner
  -- Refuses (PF003) an input that no run can have
  plpgsql immutable

function pgflow.check_inputs_(workflow text, shapes jsonb[], inputs text[]) returns void, owner pgflow_owner
  -- Refuses (PF003) an input that lacks a parameter, or has one too many, for all code of a workflow that is in force
  plpgsql immutable

function pgflow.check_journal_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- A journal is dense, and ends with its run
  plpgsql volatile

function pgflow.check_json_(value json, what text) returns void, owner pgflow_owner
  -- Refuses (PF003) a value too long, too deep or too large to be read back by every client
  plpgsql immutable

function pgflow.check_keeping_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Legal holds of runs that are gone
  sql volatile

function pgflow.check_key_(key text) returns void, owner pgflow_owner
  -- Refuses (PF003) a key that is empty or too long; null is a key to be made up
  plpgsql immutable

function pgflow.check_labels_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Labels are those of the start with the changes that the run has made
  plpgsql volatile

function pgflow.check_lines_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Runs in lines, and whose turn it is
  plpgsql volatile

function pgflow.check_lock_(key text, holder text, ttl interval) returns void, owner pgflow_owner
  -- Refuses (PF003) a lock without a key, a holder or a limit of time
  plpgsql immutable

function pgflow.check_locks_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Locks have one holder, whose run is open, and no waiter is forgotten
  plpgsql volatile

function pgflow.check_mail_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Mail belongs to a chain, and something will look at it: a lease, a nudge or a timer
  plpgsql volatile

function pgflow.check_may_force_(key text) returns void, owner pgflow_owner
  -- Refuses (PF021) a caller without the right to force_cancel_run
  plpgsql stable

function pgflow.check_may_settle_(effect_key text) returns void, owner pgflow_owner
  -- Refuses (PF021) a caller without the right to settle_effect
  plpgsql stable

function pgflow.check_name_(name text, what text, max_bytes integer DEFAULT 255) returns void, owner pgflow_owner
  -- Refuses (PF003) a name that is missing, empty or too long
  plpgsql immutable

function pgflow.check_numbers_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- No sequence is behind the rows; the detail brings it on
  sql stable

function pgflow.check_object_(value jsonb, what text) returns void, owner pgflow_owner
  -- Refuses (PF003) labels or metadata that no run can have
  plpgsql immutable

function pgflow.check_objects_(list jsonb, what text) returns void, owner pgflow_owner
  -- Refuses (PF003) a value other than an array of objects
  plpgsql immutable

function pgflow.check_obligations_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Every obligation that was opened is closed or in owed; a completed run has left none behind
  plpgsql volatile

function pgflow.check_origins_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Forks and later generations begin with the journal of their origin
  plpgsql volatile

function pgflow.check_page_(after bigint, max integer) returns void, owner pgflow_owner
  -- Refuses (PF003) a page of a verification that holds nothing
  plpgsql immutable

function pgflow.check_path_(path text[]) returns text[], owner pgflow_owner
  -- Refuses (PF003) a path that no document can have, and answers any other
  plpgsql immutable

function pgflow.check_payload_(run_id bigint, key text, name text, payload json) returns void, owner pgflow_owner
  -- Refuses (PF003) the payload of a signal that no registered version of the run's code would take
  plpgsql stable
  set enable_seqscan=on

function pgflow.check_places_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- A run that is open has one place, which agrees with its journal
  plpgsql volatile

function pgflow.check_pool_(name text, budget jsonb) returns void, owner pgflow_owner
  -- Refuses a pool that is not there (PF026) and bad limits (PF003)
  plpgsql stable

function pgflow.check_relays_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Cursors and deliveries are of events that there were
  plpgsql volatile

function pgflow.check_sagas_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Effects that are carried were done by the chain, and are taken back where it fails
  plpgsql volatile

function pgflow.check_schedules_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Slots are decided once, in their order, and no schedule is forgotten
  sql volatile

function pgflow.check_seals_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- The journal is guarded, and equals what was sealed of it
  plpgsql volatile

function pgflow.check_spec_(spec jsonb) returns void, owner pgflow_owner
  -- Refuses (PF003) what no slots can be made of; the fields of an expression are checked when it is evaluated
  plpgsql stable

function pgflow.check_start_(priority integer, run_at timestamp with time zone, timeout_seconds double precision, labels jsonb, metadata jsonb, tenant text, key_retention_seconds integer, t timestamp with time zone) returns void, owner pgflow_owner
  -- Refuses (PF003) options of a start that no run can have
  plpgsql immutable

function pgflow.check_starts_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Keys and deadlines have their runs
  plpgsql volatile

function pgflow.check_steps_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Beats and drafts of steps are of open runs
  plpgsql volatile

function pgflow.check_tenant_(tenant text) returns void, owner pgflow_owner
  -- Refuses (PF003) a tenant that no run can have
  plpgsql immutable

function pgflow.check_tenants_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Roles of tenants that another role lets act for all, and runs that have another tenant than what they come from
  sql volatile

function pgflow.check_times_(key_seconds double precision, debounce_seconds double precision, max_wait_seconds double precision, if_taken text, key text, run_at timestamp with time zone, budget jsonb) returns void, owner pgflow_owner
  -- Refuses (PF003) combinations of times that a key cannot have
  plpgsql immutable

function pgflow.check_updates_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- Each update waits, was taken, or is answered, once; and the journal says so
  plpgsql volatile

function pgflow.check_version_(version text) returns void, owner pgflow_owner
  -- Refuses (PF003) a version that no lane can have
  plpgsql immutable

function pgflow.check_waits_() returns TABLE(invariant text, detail text), owner pgflow_owner
  -- A parked run waits for something that can come, and has not come
  plpgsql volatile

function pgflow.check_workflow(workflow text, version integer DEFAULT NULL::integer) returns TABLE(line integer, sqlstate text, message text, hint text), owner pgflow_owner
  -- Errors that plpgsql_check finds in the steps of a workflow in SQL: unknown tables, columns and functions, and wrong types, each with its line; PF006 where that extension is not installed
  plpgsql stable
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.check_zone_(zone text) returns text, owner pgflow_owner
  -- Refuses (PF003) a name of no time zone, and answers any other
  plpgsql stable

function pgflow.child_is_undone_(origin bigint, cut integer, call integer) returns boolean, owner pgflow_owner
  -- True if the dropped part of a journal, or a later generation, has taken back what a child did, or begun to: its result must not be handed over
  sql stable

function pgflow.child_rows_(list jsonb) returns TABLE(n integer, child jsonb, call integer, workflow text, queue text, input json, key text, priority integer, run_at timestamp with time zone, timeout interval, labels jsonb, metadata jsonb, close_policy "char", version text, pool text, budget jsonb), owner pgflow_owner
  -- Rows of the protocol as columns: children to start
  sql stable

function pgflow.child_saga_(parent bigint, child bigint) returns jsonb, owner pgflow_owner
  -- Effects of a child that has completed which its parent must take back if it fails: {of: root of the parent, effects: [[name, key, code, request, result, reference], ...]}; null = none
  sql stable
  set enable_seqscan=off

function pgflow.claim_(worker_id integer, lanes integer[], max integer, tokens bigint[], take_suspect boolean, after bigint[]) returns bigint[], owner pgflow_owner
  -- Claims up to max runs of the lanes that are not paused, within the limits of their queues, and at most one group of suspects
  plpgsql volatile

function pgflow.claim_flows(worker_id integer, lanes integer[], max integer) returns jsonb, owner pgflow_owner
  -- Claims runs for a session that works: [[run, token, chain], ...]; null = none
  plpgsql volatile security definer
  set plan_cache_mode=force_generic_plan
  set jit=off
  grant execute to pgflow_worker

function pgflow.claim_line_(queue text, lanes integer[], max integer, worker_id integer, tokens bigint[], may_suspect boolean, t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Claims up to max runs of a line, key by key, for a worker that serves these lanes of the queue. The queue is locked
  plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan

function pgflow.claim_pages(max integer DEFAULT 20, lease_seconds double precision DEFAULT 60) returns TABLE(page_id text, run_id bigint, call integer, kind text, opened_at timestamp with time zone, key text, workflow text, generation integer, tenant text, name text, why text, effect text, tries integer, leased_until timestamp with time zone, reason text, detail json), owner pgflow_owner
  -- Claims up to this number of due pages. Call page_sent after sending, else they are given out again after the lease
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.claim_runs(worker_id integer, lanes integer[], max integer, tokens bigint[], take_suspect boolean DEFAULT true, after bigint[] DEFAULT NULL::bigint[]) returns TABLE(run_id bigint, token bigint, chain_id bigint, lane_id integer, generation integer, attempt integer, suspect integer, last_seq integer, key text, root text, input text, units text, has_mail boolean, created_us bigint, now_us bigint, priority integer, extra jsonb, took_us bigint), owner pgflow_owner
  -- Claims up to max runs for a worker, only those behind {priority, run} if `after` is given; tokens are max random numbers that it will fence its writes with; took_us: how long it looked for them
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.claimed_(ids bigint[]) returns TABLE(run_id bigint, token bigint, chain_id bigint, lane_id integer, generation integer, attempt integer, suspect integer, last_seq integer, key text, root text, input text, units text, has_mail boolean, created_us bigint, now_us bigint, priority integer, extra jsonb), owner pgflow_owner
  -- Facts for a worker on the runs it has just claimed, with the first page of each journal
  plpgsql volatile
  set enable_seqscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan

function pgflow.close_by_word_(me bigint, payload json, sent_by text, token bigint, t timestamp with time zone, INOUT seq integer, OUT units jsonb) returns record, owner pgflow_owner
  -- Records a person's word on an obligation, or its breach, if it is still open
  plpgsql volatile
  set enable_seqscan=off

function pgflow.close_days_(t timestamp with time zone) returns integer, owner pgflow_owner
  -- Computes the roots of days that are over; answers how many
  plpgsql volatile

function pgflow.close_debt_(me bigint, said jsonb) returns void, owner pgflow_owner
  -- Removes an obligation from what a run owes, or notes who holds it now; no effect if it is closed
  plpgsql volatile
  set enable_seqscan=off

function pgflow.close_gates_(ids bigint[], calls integer[] DEFAULT NULL::integer[]) returns void, owner pgflow_owner
  -- Closes gates of runs, all or those of some calls, with their debts and their undelivered mail
  sql volatile
  set enable_seqscan=off

function pgflow.close_loss(loss_id bigint, why text, by text DEFAULT SESSION_USER) returns boolean, owner pgflow_owner
  -- Closes a loss, so that doctor does not show it any more; returns false if no open loss has this number
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.close_reservations_(runs bigint[], calls integer[]) returns void, owner pgflow_owner
  -- Returns what calls have reserved and not spent: of each run this call, or every one if it is null. The pools are locked
  sql volatile
  set enable_seqscan=off

function pgflow.closes_circle_(ticket bigint) returns boolean, owner pgflow_owner
  -- True if what is waited for is not given back before what the waiter holds
  sql volatile
  set enable_seqscan=off

function pgflow.code_rows_(list jsonb) returns TABLE(code jsonb, workflow text, version text, code_hash text, is_pinned boolean, alias_of text, patches jsonb, signals jsonb, defaults json, parameters jsonb), owner pgflow_owner
  -- Rows of the protocol as columns: code of workflows, as workers and apps declare it
  sql stable

function pgflow.collect_(me bigint, workflow text, lane integer, input json, start_id uuid, most integer) returns boolean, owner pgflow_owner
  -- Adds the items of a start to a run that collects; false if it takes no more, null if a run has them already. One that is full, or has no room for them, begins at once. PF002: it is a run of another workflow
  plpgsql volatile

function pgflow.collected_as_(tenant text, start_id uuid) returns bigint, owner pgflow_owner
  -- The chain that has the items of a start; null = none yet
  sql volatile

function pgflow.commit_and_claim(batch jsonb, worker_id integer, lanes integer[], max integer, tokens bigint[], take_suspect boolean, after bigint[] DEFAULT NULL::bigint[], payloads json[] DEFAULT NULL::json[]) returns TABLE(answer jsonb, run_id bigint, token bigint, chain_id bigint, lane_id integer, generation integer, attempt integer, suspect integer, last_seq integer, key text, root text, input text, units text, has_mail boolean, created_us bigint, now_us bigint, priority integer, extra jsonb, took_us bigint), owner pgflow_owner
  -- commit_units and then claim_runs in one transaction: what a worker that drains a queue does. With more tokens than max, as many more runs are claimed as park in this commit
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.commit_unit(run_id bigint, token bigint, seq integer, call integer, kind "char", name text, payload json, starts json, at_us bigint, worker_id integer DEFAULT NULL::integer) returns text, owner pgflow_owner
  -- commit_units for one unit of one run, without a document: what a run that is alone in its process pays; null = well
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_worker

function pgflow.commit_units(batch jsonb, careful boolean DEFAULT false, payloads json[] DEFAULT NULL::json[]) returns jsonb, owner pgflow_owner
  -- Commits units, outcomes and changes of place of many runs, each fenced by its lease; null = all well
  plpgsql volatile security definer
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  grant execute to pgflow_worker

function pgflow.compare_evidence_(e pgflow.evidence) returns TABLE(finding text, detail text), owner pgflow_owner
  -- Compares a row with what was noted of it; answers how it differs
  plpgsql stable

function pgflow.compile_workflow(signature text, body text, schemas name[] DEFAULT current_schemas(false)) returns jsonb, owner pgflow_owner
  -- Compiles a workflow in SQL without making it: {workflow, parameters, variables, nodes, handler}; refuses (PF003) with line and column
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.confirm_effect(ref text, verdict text DEFAULT 'confirmed'::text, value json DEFAULT 'null'::json, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Settles the effect that was accepted under a reference, for webhooks and queues. Repeating the same verdict has no effect; PF001 if no effect has the reference (yet), PF006 if it has another verdict
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.conflict_(key text, chain bigint, workflow text, input json, defaults json, is_other_parent boolean) returns text, owner pgflow_owner
  -- Reason why a start cannot have a key: the run that has it, its status, and the differences
  sql stable

function pgflow.continue_(question jsonb, seq integer, t timestamp with time zone) returns integer, owner pgflow_owner
  -- Ends a run as the next generation of its chain, which is ready at once; answers the lane
  plpgsql volatile

function pgflow.copy_units_(origin bigint, cut integer, heir bigint, edit json) returns void, owner pgflow_owner
  -- Copies a journal up to a cut, without the licences of bodies whose outcome is not in it, and with another result in its last unit if one is given
  plpgsql volatile

function pgflow.count_batch(batch text, tenant text DEFAULT ''::text, OUT runs bigint, OUT completed bigint, OUT failed bigint, OUT cancelled bigint, OUT is_whole boolean) returns record, owner pgflow_owner
  -- Number of the members of a batch, and how many of them have ended in which way; is_whole: all are named. PF001: no run that has a batch has the key
  plpgsql stable security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.count_lost_threads(worker_id integer, lost integer) returns void, owner pgflow_owner
  -- Records the number of a worker's threads whose bodies outlive their steps
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.count_open(chains bigint[]) returns bigint, owner pgflow_owner
  -- Of the newest runs of a schedule, for the view schedules: number of those that have not ended
  sql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_worker

function pgflow.create_workflow(signature text, body text, schemas name[] DEFAULT current_schemas(false)) returns text, owner pgflow_owner
  -- Makes a workflow of a text of plpgsql with labels, or its next version; says which version it is. PF003, with line and column, if the text is not sound; PF006 if the name is another's. It needs the right to create functions in the first schema of search_path
  plpgsql volatile
  set check_function_bodies=on
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.cron_field_(said text, field integer) returns integer[], owner pgflow_owner
  -- The values that a field of an expression of cron has, in their order
  plpgsql immutable

function pgflow.cron_has_day_(days integer[], weekdays integer[], is_both boolean, day date) returns boolean, owner pgflow_owner
  -- True if the days of an expression have this one
  sql immutable

function pgflow.cron_moments_(wall timestamp without time zone, zone text, is_fixed boolean) returns timestamp with time zone[], owner pgflow_owner
  -- The moments at which a clock on the wall shows a time: none, one or two; of a fixed hour always one
  plpgsql stable strict

function pgflow.cron_slots_(cron text, zone text, after timestamp with time zone, most integer, upto timestamp with time zone DEFAULT 'infinity'::timestamp with time zone) returns timestamp with time zone[], owner pgflow_owner
  -- The next times after one that an expression of cron names in a zone, so many at most
  plpgsql stable

function pgflow.cron_value_(said text, field integer) returns integer, owner pgflow_owner
  -- The number that a value of a field is; refuses (PF003) others
  plpgsql immutable

function pgflow.cut_before_(run_id bigint, step text) returns integer, owner pgflow_owner
  -- The seq before the first unit of a step's last call, of its last failed or refused one if there is one
  plpgsql stable

function pgflow.cut_to_retry_(run_id bigint) returns integer, owner pgflow_owner
  -- The seq before the step that failed last (of a run of a file: first), or before the first effect that was taken back for it, and before each lock in whose block it would be; null = no step has failed
  plpgsql stable

function pgflow.day_head_(before bytea, day date, root bytea) returns bytea, owner pgflow_owner
  -- Head of a day: hash, behind 03, of the head of the day before it, the day and its root
  sql stable

function pgflow.deadlocks() returns TABLE(key text, workflow text, queue text, what text, waits_for text), owner pgflow_owner
  -- Runs that wait for each other for ever: what each waits for (child, lock, line, replacement or batch), and the run that it waits for. Cancel one of them
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_worker

function pgflow.debounce_(me bigint, workflow text, lane integer, input json, labels jsonb, metadata jsonb, priority integer, start_id uuid, debounce_seconds double precision, max_wait_seconds double precision, timeout_seconds double precision, is_lined boolean) returns boolean, owner pgflow_owner
  -- Gives a run that has not begun the input and options of a later start, and puts it off; false if it has begun or is being cancelled. PF002: it is a run of another workflow
  plpgsql volatile

function pgflow.declare_(one jsonb, worker_id integer, t timestamp with time zone) returns boolean, owner pgflow_owner
  -- Sets a schedule as code declares it; false if it is like that already
  plpgsql volatile

function pgflow.declare_app(declared jsonb) returns text[], owner pgflow_owner
  -- Sets the declarations of an app that are not set yet: {pools, queues, relays, schedules, codes}, each a list as declare_pools, declare_queues and declare_schedules take it; returns the names
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_declarer
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.declare_pools(pools jsonb) returns integer, owner pgflow_owner
  -- Sets the pools that an app declares, [{name, limits, parent, per, tz, soft, hard}, ...], each parent first, where that differs from its last declaration; answers how many
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.declare_queues(queues jsonb) returns text[], owner pgflow_owner
  -- Sets rules of queues that an app declares, [{queue, rules}, ...], where that differs from its last declaration; a rule that it no longer names is taken away. Answers which queues have changed
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_declarer
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.declare_relay(name text, topics text[], target text DEFAULT ''::text, start text DEFAULT 'oldest'::text) returns boolean, owner pgflow_owner
  -- Creates a relay, or sets the topics of an existing one; returns true if it is new. A new one begins with the oldest kept event, or after the newest
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.declare_schedules(worker_id integer, declared jsonb) returns text[], owner pgflow_owner
  -- Sets the schedules that the code of a worker declares, [{name, workflow, spec, ...}, ...], where it says something else of one than code last did, and no newer code is there; answers which have changed
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.delegate_gate(gate text, from_approver text, to_approver text, reason text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Lets another answer a gate in place of a name or role that it asks. PF021 if it does not ask that one, or if that is neither the role of the session nor one that it is a member of, save for pgflow_speaker. PF006 if that one has approved, if the other may answer already, or if anybody may; PF022 if the gate is closed, PF001 if no open gate has the key
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_speaker

function pgflow.delete_documents(collection text, paths json) returns integer, owner pgflow_owner
  -- Deletes the documents of these paths, given as an array of arrays, and answers how many there were
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.delete_folder(collection text, prefix text[]) returns integer, owner pgflow_owner
  -- Deletes the documents in a folder and in those below, and answers how many there were
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.deliver_signal(key text, name text, payload json DEFAULT 'null'::json, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, tell boolean DEFAULT true, idempotency_key text DEFAULT NULL::text, OUT chain_id bigint, OUT lane_id integer, OUT message_id bigint, OUT ended_as text, OUT is_new boolean) returns record, owner pgflow_owner
  -- Sends a signal and, if the run is parked waiting for it, makes the run ready in the same transaction. Returns (chain, lane); lane is null if nothing was made ready: call wake(chain) then. Notifies the lane's workers unless tell is false. Also returns the number of the message and the status of a run that has ended, as post_signal does. PF003 if the workflow declares the signal and takes no such payload. PF001 if no run has the key
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.delivery_rows_(list json) returns TABLE(event_id bigint, outcome text, error text, delay interval), owner pgflow_owner
  -- Rows of the protocol as columns: outcomes of deliveries by a relay
  sql stable

function pgflow.discharge(obligation_key text, evidence json DEFAULT NULL::json, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Closes an obligation: it was done, as the evidence shows. Also closes the debt of an effect that is uncompensated: it was taken back. PF001 if nothing that is owed has the key
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.discharge_(me bigint, call integer, verdict text, why text, said_by text, t timestamp with time zone) returns void, owner pgflow_owner
  -- Closes a debt: says how, who and why
  plpgsql volatile

function pgflow.draft_rows_(list jsonb) returns TABLE(n integer, stream text, value json), owner pgflow_owner
  -- Rows of the protocol as columns: values of streams that a running step emits
  sql stable

function pgflow.draw_rows_(list jsonb) returns TABLE(run_id bigint, call integer), owner pgflow_owner
  -- Rows of the protocol as columns: calls whose reservations in pools are returned
  sql stable

function pgflow.draw_workflow(workflow text, version integer DEFAULT NULL::integer) returns text, owner pgflow_owner
  -- A version of a workflow in SQL, the current one if none is named, as a picture in the language of Mermaid. PF001 if there is none, PF021 if you may not see it
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.drop_blobs_(max integer DEFAULT 1000) returns integer, owner pgflow_owner
  -- Looks at loose blobs, up to so many, and removes those that no run names; answers how many. The last step of its transaction
  plpgsql volatile
  set enable_seqscan=off

function pgflow.drop_children_(me bigint, cut integer, children text, are_reused boolean) returns void, owner pgflow_owner
  -- Settles the children that the dropped part started, unless they are reused: open ones are cancelled or refused (PF006), keys of ended ones freed
  plpgsql volatile

function pgflow.drop_empty_partitions_() returns integer, owner pgflow_owner
  -- Drops partitions of the journal of which no run is left; answers how many
  plpgsql volatile

function pgflow.drop_events(older_than interval, max integer DEFAULT 10000, OUT events bigint, OUT partitions integer) returns record, owner pgflow_owner
  -- Removes events that are older, that every relay has taken and no run waits for: whole partitions as tables, and at most so many rows of the newest ones; answers how many of each
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.drop_frames_(run_ids bigint[]) returns void, owner pgflow_owner
  -- Forgets where runs were that have ended
  plpgsql volatile

function pgflow.drop_history(ended_before timestamp with time zone, max integer DEFAULT 1000, after bigint DEFAULT 0) returns TABLE(runs integer, partitions integer, last_root bigint), owner pgflow_owner
  -- Removes families of runs that ended before a time, up to so many from a root on; answers the last root it looked at, null once there are none. A session that acts for tenants removes theirs only
  plpgsql volatile security definer
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  grant execute to pgflow_operator

function pgflow.drop_message(key text, message bigint, why text DEFAULT 'dropped'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, OUT chain_id bigint, OUT lane_id integer, OUT message_id bigint) returns record, owner pgflow_owner
  -- Takes a message out of the mailbox of a run and puts it aside, or marks one that was put aside as dealt with; a run that was stuck for want of it goes on. PF001 if there is no such message, PF006 while the run is running
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.drop_old_code_(before timestamp with time zone) returns void, owner pgflow_owner
  -- Forgets code that was last served before a time and before every run that is open
  plpgsql volatile

function pgflow.drop_own_pools_(names text[]) returns void, owner pgflow_owner
  -- Removes the pools that runs had of their own among these and those above them, unless another run draws on them, such as a fork
  plpgsql volatile
  set enable_seqscan=off

function pgflow.drop_relay(name text) returns void, owner pgflow_owner
  -- Removes a relay, its cursor and its deliveries. PF028 if the relay does not exist
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.drop_retention(rule text) returns boolean, owner pgflow_owner
  -- Takes back a rule of retention; true if there was one
  sql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.drop_seals_(ids bigint[], t timestamp with time zone) returns void, owner pgflow_owner
  -- Notes of seals that the history of their runs was removed, and removes those whose whole round is
  plpgsql volatile
  set enable_seqscan=off

function pgflow.drop_workflow(workflow text) returns void, owner pgflow_owner
  -- Drops a workflow in SQL and its functions; its texts stay in pgflow.workflows. PF001 if there is none, PF006 while runs of it are open
  plpgsql volatile
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.due_slots_(s pgflow.schedule, t timestamp with time zone) returns timestamp with time zone[], owner pgflow_owner
  -- The upcoming slots that are due
  sql stable

function pgflow.edit_note_(run_id bigint, cut integer, edit json) returns jsonb, owner pgflow_owner
  -- Hashes of a result before and after it was edited
  sql stable

function pgflow.effect_ends_(run_id bigint) returns TABLE(call integer, ended_at integer), owner pgflow_owner
  -- Of each effect of a run that is closed, the seq of the unit that closes it
  sql stable

function pgflow.effect_error_(name text, said_by text, why text) returns json, owner pgflow_owner
  -- The error that an effect raises after a person declared it failed
  sql immutable

function pgflow.effects_after_(run_id bigint, cut integer) returns TABLE(seq integer, call integer, name text, key text, args_hash bigint, request json, risk text, code text, decision text, compensates text, state text, outcome "char", result json, is_undo boolean, is_undone boolean, is_foreign boolean, origin jsonb), owner pgflow_owner
  -- The effects that a journal intends after a cut, each with what became of it (open, confirmed, failed), whether it helps to take another back, whether it was taken back there or in a later generation, whether the run that this one was forked from did it, and where
  plpgsql stable

function pgflow.emit_drafts(run_id bigint, token bigint, call integer, try text, after_seq integer, first_n integer, emitted jsonb) returns boolean, owner pgflow_owner
  -- A running step emits values, [[stream, value as text], ...], that count once it has completed; false if the lease is lost
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.end_by_force_(me bigint, chain bigint, last_seq integer, token bigint, t timestamp with time zone) returns void, owner pgflow_owner
  -- Writes the outcome of a run that is cancelled without its code, who did it, and what it leaves owed
  plpgsql volatile

function pgflow.end_flow_(f pgflow.flow_frame, worker_id integer, token bigint, chain bigint, status text, reason text, output jsonb, error jsonb) returns jsonb, owner pgflow_owner
  -- Ends a run of a workflow in SQL
  plpgsql volatile

function pgflow.end_forced_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, to_wake bigint[]), owner pgflow_owner
  -- Ends the runs of a batch that a cancel by force waits for: their positions, and the chains to wake
  plpgsql volatile
  set enable_seqscan=off

function pgflow.end_locks_(run_ids bigint[], t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Gives back all that runs hold, and takes them out of every queue, as they end; answers the chains to wake
  plpgsql volatile
  set enable_seqscan=off

function pgflow.end_rows_(list jsonb) returns TABLE(run_id bigint, status text, reason text, output json, error json, chain_id bigint, token bigint, apart integer), owner pgflow_owner
  -- Rows of the protocol as columns: ends of runs
  sql stable

function pgflow.end_runs_(batch jsonb, payloads json[], t timestamp with time zone, OUT to_wake bigint[], OUT told jsonb) returns record, owner pgflow_owner
  -- Ends the runs of a batch: answers the chains to wake, and the results for parents that the same worker holds
  plpgsql volatile
  set enable_seqscan=off

function pgflow.ended_as_(run_id bigint) returns text, owner pgflow_owner
  -- Status of a run that has ended and so takes no mail; null while it is open
  plpgsql stable

function pgflow.ended_roots_(ended_before timestamp with time zone, after bigint, max integer, tenants text[] DEFAULT NULL::text[]) returns TABLE(root bigint, newest bigint), owner pgflow_owner
  -- Heads of families that ended before a time, so many behind a run, of these tenants or of all; and the newest generation of each
  plpgsql stable
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.error_of_(node pgflow.flow_node, began timestamp with time zone, sqlstate text, message text, detail text, context text) returns jsonb, owner pgflow_owner
  -- The error of a node, as its journal has it
  plpgsql volatile

function pgflow.event_rows_(list jsonb) returns TABLE(call integer, name text, topic text, match jsonb, key text, after bigint), owner pgflow_owner
  -- Rows of the protocol as columns: waits for events, which come as signals of a name of their own
  sql stable

function pgflow.evidence_hash_(kind text, key text) returns bytea, owner pgflow_owner
  -- Hash, behind 05, of the row of a kind that has this key; null if there is none
  plpgsql stable
  set TimeZone=UTC
  set extra_float_digits=1
  set IntervalStyle=postgres
  set bytea_output=hex

function pgflow.evidence_kinds_() returns TABLE(kind text, is_of_run boolean, source text, key text, finds text), owner pgflow_owner
  -- Kinds of evidence: whether one belongs to a run, the rows, the key of a row r as JSON, and how $1 finds it
  sql immutable

function pgflow.evidence_leaf_(e pgflow.evidence) returns bytea, owner pgflow_owner
  -- Leaf of a piece of evidence in the tree of its round
  sql stable

function pgflow.exact_(at timestamp with time zone) returns text, owner pgflow_owner
  -- A time as microseconds since 1970, or infinity
  sql stable

function pgflow.expire_gates_(questions jsonb, positions integer[], t timestamp with time zone) returns integer[], owner pgflow_owner
  -- Closes the expired gates of a batch, unless an answer is in progress; returns the positions that got mail
  plpgsql volatile
  set enable_seqscan=off

function pgflow.expire_lines_(max integer, t timestamp with time zone) returns void, owner pgflow_owner
  -- Posts a cancel to runs that have stood in a line for too long without beginning
  plpgsql volatile
  set enable_seqscan=off

function pgflow.expire_runs_(max integer, t timestamp with time zone) returns void, owner pgflow_owner
  -- Posts a cancel to runs whose deadline has passed
  plpgsql volatile
  set enable_seqscan=off

function pgflow.export_blobs(chains bigint[]) returns TABLE(tenant text, digest text, size_bytes bigint), owner pgflow_owner
  -- Large values that runs of these chains name; read_chunk() reads them
  sql stable security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.export_runs(chains bigint[]) returns TABLE(chain_id bigint, run_id bigint, last_seq integer, history text), owner pgflow_owner
  -- Each generation of these chains as a JSON object without its journal, which export_units has: what import_run reads
  sql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.export_units(run_id bigint, after_seq integer DEFAULT 0) returns text, owner pgflow_owner
  -- A page of a journal as JSON: [[seq, call, kind, name, payload as text, starts, at, due_at, recorded_at, token, args_hash, key], ...]; null at its end
  sql stable security definer
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.fail_node_(f pgflow.flow_frame, node pgflow.flow_node, worker_id integer, token bigint, chain bigint, error jsonb, OUT after pgflow.flow_frame, OUT place text, OUT wake jsonb) returns record, owner pgflow_owner
  -- Records that a node has failed: it is tried again later, or the run takes back what it did
  plpgsql volatile

function pgflow.families_(roots bigint[]) returns TABLE(root bigint, run_id bigint), owner pgflow_owner
  -- Runs with all that they continued as and all that they started, and so on
  plpgsql stable
  set enable_seqscan=off

function pgflow.fence_step(run_id bigint, token bigint, call integer, units jsonb, args_hash bigint DEFAULT NULL::bigint, payloads json[] DEFAULT NULL::json[], closes jsonb DEFAULT NULL::jsonb, fences bigint[] DEFAULT NULL::bigint[]) returns bigint, owner pgflow_owner
  -- Last call of a transactional step's transaction: fences the lease, appends the buffered units and the step's own, none of which is of the ledger of effects, and settles what is spent of a budget; the time in microseconds. PF025 if the run does not hold one of these locks any more
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_worker

function pgflow.fill_batch(batch text, workflow text, run_ids bigint[], is_whole boolean DEFAULT true, tenant text DEFAULT ''::text) returns void, owner pgflow_owner
  -- Has a run of this workflow, which has not begun, wait until these runs have ended. It is named by its key, and they by their numbers. Call it in the transaction that starts them; is_whole: no more are named later. PF001: no run has the key; PF002: one of another workflow has it; PF006: it has begun
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.fill_input_(input json, defaults json) returns json, owner pgflow_owner
  -- An input with the defaults of what it leaves out
  plpgsql immutable

function pgflow.find_chain(key text, tenant text DEFAULT ''::text) returns bigint, owner pgflow_owner
  -- The chain that a key names; PF001 if there is none
  sql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.find_debt_(effect_key text, ref text) returns pgflow.owed, owner pgflow_owner
  -- The open effect that a key names, or that was accepted under a reference, locked; null = there is none. PF003 if several were accepted under it
  plpgsql volatile

function pgflow.find_relay_(name text) returns void, owner pgflow_owner
  -- Locks a relay, or PF028
  plpgsql volatile

function pgflow.find_wraps(key_id text, after jsonb DEFAULT NULL::jsonb, pages integer DEFAULT 128) returns TABLE(wraps text[], name text, first_page bigint, next jsonb), owner pgflow_owner
  -- Data keys of values that are wrapped with another key than the one named, in so many pages of a table behind `after`; answers the table, its first page, and where to go on. No row: that was the last table
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.finish_blob(blob bigint, OUT digest text, OUT size_bytes bigint) returns record, owner pgflow_owner
  -- Completes a blob, and answers its digest (the SHA-256 of the SHA-256 of its chunks) and its length in bytes. One with the same content takes its place, if the tenant has it
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.fire_schedules(worker_id integer) returns double precision, owner pgflow_owner
  -- Fires the schedules that are due, if this worker is the one to do it, with no need of Python; answers the seconds until the next look
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.fire_slot_(INOUT s pgflow.schedule, slot timestamp with time zone, t timestamp with time zone, OUT lane integer) returns record, owner pgflow_owner
  -- Starts the run of a slot; what keeps it from starting is kept with the schedule
  plpgsql volatile

function pgflow.first_adopted_(run_id bigint) returns integer, owner pgflow_owner
  -- The next number, beyond those of any code, for a call that a run takes over from a dropped part
  sql stable

function pgflow.first_again_(run_id bigint) returns integer, owner pgflow_owner
  -- The seq from which a retry of a run of a file does its steps again, as far as they are not kept; null for none
  sql stable

function pgflow.first_failure_(run_id bigint) returns integer, owner pgflow_owner
  -- The seq before the first step of a run of a file that failed in its last try (NODE~2 is the second one), or before the start of the first run of a file that failed within; null for none
  sql stable

function pgflow.first_run_(run_id bigint, seq integer) returns bigint, owner pgflow_owner
  -- The run to which a unit of a journal happened, of which others have copies
  plpgsql stable

function pgflow.first_run_since_(at timestamp with time zone) returns bigint, owner pgflow_owner
  -- The first run that was made at this time or later, found by some probes: numbers of runs grow with time, but for starts that went on at the same time
  plpgsql stable
  set enable_seqscan=off

function pgflow.fits_(e pgflow.event, w pgflow.event_wait) returns boolean, owner pgflow_owner
  -- True if a run that waits waits for this event
  sql stable

function pgflow.fits_(rule pgflow.policy_rule, name text, risk text, request jsonb, me bigint, decision text, is_by_model boolean, actor text DEFAULT NULL::text) returns boolean, owner pgflow_owner
  -- True if a rule of the policy fits an effect of a run, with its inputs, or an effect that has no run yet
  plpgsql stable

function pgflow.flow_add_(c jsonb, list text, item jsonb) returns jsonb, owner pgflow_owner
  -- Adds a node, or opens a block
  sql immutable

function pgflow.flow_allows_(workflow text, privilege text, role oid) returns boolean, owner pgflow_owner
  -- True if a role owns a workflow in SQL, or was granted this right to it
  sql stable

function pgflow.flow_arguments_(body text, low text[], places integer[], i integer, stop integer) returns text, owner pgflow_owner
  -- The expression that makes the input of a child of its arguments, which stand between two tokens
  plpgsql immutable

function pgflow.flow_ask_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- ask: a gate, at which a person answers
  plpgsql immutable

function pgflow.flow_begin_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- begin: a block, which may have a handler of its own
  plpgsql immutable

function pgflow.flow_branch_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- elsif, else, and when of a case or a handler: the next branch
  plpgsql immutable

function pgflow.flow_case_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- case: begins a block
  plpgsql immutable

function pgflow.flow_close_(what text) returns text, owner pgflow_owner
  -- Words that close a block
  sql immutable

function pgflow.flow_count_(c jsonb) returns integer, owner pgflow_owner
  -- Number of nodes so far
  sql immutable

function pgflow.flow_cut_(body text, places integer[], i integer, stop integer) returns text, owner pgflow_owner
  -- The text from one token up to another
  sql immutable

function pgflow.flow_declare_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- declare: variables of a block, which are kept with all others and set each time that it begins
  plpgsql stable

function pgflow.flow_declared_(body text, low text[], places integer[], workflow text, parameters jsonb, schemas name[], OUT variables jsonb, OUT nodes jsonb, OUT begins integer) returns record, owner pgflow_owner
  -- Variables of a workflow, the node that sets them, and the token at which its text begins
  plpgsql stable

function pgflow.flow_each_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- for each: a child for each row
  plpgsql immutable

function pgflow.flow_emit_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- emit: a value of a stream
  plpgsql immutable

function pgflow.flow_end_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- end: closes a block, or the text
  plpgsql immutable

function pgflow.flow_end_branch_(c jsonb) returns jsonb, owner pgflow_owner
  -- Ends a branch of an if, a case or a handler
  plpgsql immutable

function pgflow.flow_event_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- wait for event: one of the outbox
  plpgsql immutable

function pgflow.flow_exception_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- exception: begins the handler of a block, or of the workflow
  plpgsql immutable

function pgflow.flow_fail_(body text, at integer, message text, hint text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Refuses (PF003) the text of a workflow, with line and column
  plpgsql immutable

function pgflow.flow_finish_(c jsonb, body text) returns jsonb, owner pgflow_owner
  -- The nodes of a workflow with its compensations, each with its line, its code and the node after it
  plpgsql immutable

function pgflow.flow_for_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- for: begins a loop over rows or numbers
  plpgsql stable

function pgflow.flow_gather_(step jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- The step at hand with one more statement of SQL
  plpgsql immutable

function pgflow.flow_has_(variables jsonb, name text) returns boolean, owner pgflow_owner
  -- True if a variable of this name is declared
  sql immutable

function pgflow.flow_if_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- if: begins a block
  plpgsql immutable

function pgflow.flow_into_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns text, owner pgflow_owner
  -- The variable that the end of a statement names, null if it names none
  plpgsql immutable

function pgflow.flow_is_label_(low text[], i integer) returns boolean, owner pgflow_owner
  -- True if the statement at a token begins a step
  sql immutable

function pgflow.flow_is_row_(type text, schemas name[]) returns boolean, owner pgflow_owner
  -- True if a variable of this type takes a whole row
  plpgsql stable

function pgflow.flow_is_sql_(low text[], i integer, is_durable boolean) returns boolean, owner pgflow_owner
  -- True if the statement at a token is one of SQL or plpgsql, and so part of the step at hand
  sql immutable

function pgflow.flow_is_word_(low text[], i integer) returns boolean, owner pgflow_owner
  -- True if the statement at a token begins with a durable word: one that ends a step
  sql immutable

function pgflow.flow_label_(body text, low text[], places integer[], i integer, OUT opts jsonb, OUT stop integer) returns record, owner pgflow_owner
  -- Options of the step that the label at a token begins, and the token of its colon
  plpgsql immutable

function pgflow.flow_leave_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- exit and continue: leave a loop, or a round of it, and give back the locks in between
  plpgsql immutable

function pgflow.flow_line_(body text, place integer) returns integer, owner pgflow_owner
  -- The line of a position in a text
  sql immutable

function pgflow.flow_lock_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- lock: begins a loop of one round, in which the run holds a lock
  plpgsql immutable

function pgflow.flow_loop_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- loop and while: begin a block
  plpgsql immutable

function pgflow.flow_name_(token text) returns text, owner pgflow_owner
  -- The identifier that a token is; null if it is none
  sql immutable

function pgflow.flow_owner_(workflow text) returns oid, owner pgflow_owner
  -- Role that made the first version of a workflow in SQL
  sql stable

function pgflow.flow_parts_(body text, low text[], places integer[], i integer, stop integer, words text[]) returns jsonb, owner pgflow_owner
  -- The expressions behind words such as timeout, up to into or the end, and the token at which they end
  plpgsql immutable

function pgflow.flow_place_(body text, at integer) returns text, owner pgflow_owner
  -- Line and column of a position in a text
  sql immutable

function pgflow.flow_place_word_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- Compiles one statement that is not SQL, or the head of its block, by the word that it begins with
  plpgsql stable

function pgflow.flow_publish_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- publish: an event, in a step of its own
  plpgsql immutable

function pgflow.flow_quoted_(name text) returns text, owner pgflow_owner
  -- An identifier in quotes, whichever it is
  sql immutable

function pgflow.flow_raise_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- raise: the error that a handler has
  plpgsql immutable

function pgflow.flow_refuse_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- Refuses (PF003) what cannot stand between steps
  plpgsql immutable

function pgflow.flow_return_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- return: the result of the run
  plpgsql immutable

function pgflow.flow_run_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- run: a child
  plpgsql immutable

function pgflow.flow_said_(f pgflow.flow_frame) returns text, owner pgflow_owner
  -- A frame as text, as far as its journal determines it
  sql stable

function pgflow.flow_seconds_(expr text) returns text, owner pgflow_owner
  -- The expression for the seconds of an interval
  sql immutable

function pgflow.flow_set_(c jsonb, node integer, key text, value integer) returns jsonb, owner pgflow_owner
  -- Says of a node which one comes after it
  sql immutable

function pgflow.flow_signature_(signature text, schemas name[], OUT workflow text, OUT variables jsonb) returns record, owner pgflow_owner
  -- Name and parameters of a workflow: name(parameter type [= default], ...)
  plpgsql stable

function pgflow.flow_sleep_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- sleep: a timer
  plpgsql immutable

function pgflow.flow_source(program jsonb, node_number integer DEFAULT NULL::integer) returns text, owner pgflow_owner
  -- The text of the function that has the SQL of all nodes of a workflow, or of only one; 0 = of none
  plpgsql immutable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.flow_span_(low text[], i integer, OUT stop integer, OUT is_durable boolean) returns record, owner pgflow_owner
  -- The last token of the statement at a token, null if it has no end; and whether something durable is in it
  plpgsql immutable

function pgflow.flow_spend_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- spend: out of the budget of the run
  plpgsql immutable

function pgflow.flow_state_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- set state: how far the run is
  plpgsql immutable

function pgflow.flow_step_(c jsonb, name text) returns integer, owner pgflow_owner
  -- The node of the step of this name; null if there is none
  sql immutable

function pgflow.flow_stop_(low text[], i integer) returns integer, owner pgflow_owner
  -- The last token of the statement at a token, or of the head of its block; null if it has none
  sql immutable

function pgflow.flow_tokens_(body text, OUT tokens text[], OUT low text[], OUT places integer[]) returns record, owner pgflow_owner
  -- Tokens of SQL as they are and in lower case, save what is quoted, with their positions; no blanks, no comments
  plpgsql immutable

function pgflow.flow_type_(type text, body text, at integer, schemas name[]) returns text, owner pgflow_owner
  -- The type of a variable, with what %type and %rowtype stand for
  plpgsql stable

function pgflow.flow_undo_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- undo: the compensation of a step
  plpgsql immutable

function pgflow.flow_until_(low text[], i integer, words text[]) returns integer, owner pgflow_owner
  -- The first of these tokens from a token on that stands in no brackets and no CASE, up to the end of the statement
  plpgsql immutable

function pgflow.flow_value_(expr text) returns text, owner pgflow_owner
  -- The statement that answers the value of an expression
  sql immutable

function pgflow.flow_variables_(body text, low text[], places integer[], i integer, stop integer, schemas name[]) returns jsonb, owner pgflow_owner
  -- Variables that are declared between two tokens, with types and values; a record lives within a step
  plpgsql stable

function pgflow.flow_wait_(c jsonb, body text, low text[], places integer[], i integer, stop integer) returns jsonb, owner pgflow_owner
  -- wait for: a signal, or an event
  plpgsql immutable

function pgflow.fold_done_(f pgflow.flow_frame, node pgflow.flow_node, seq integer, call integer, vars jsonb) returns pgflow.flow_frame, owner pgflow_owner
  -- The frame, at a step, after the unit that it is done, with the variables as they are then
  sql immutable

function pgflow.fold_items_(f pgflow.flow_frame, call integer, kind "char", payload jsonb) returns void, owner pgflow_owner
  -- Keeps the rows that a loop has read, and which child each of them has, as a unit tells
  plpgsql volatile

function pgflow.fold_journal_(run_id bigint, keep_items boolean DEFAULT false) returns pgflow.flow_frame, owner pgflow_owner
  -- The frame of a run as its journal tells it, and the rows of its loops
  plpgsql volatile

function pgflow.fold_released_(f pgflow.flow_frame, node pgflow.flow_node, call integer, payload jsonb) returns pgflow.flow_frame, owner pgflow_owner
  -- The frame after a lock was given back, lost or refused
  plpgsql stable

function pgflow.fold_unit_(f pgflow.flow_frame, seq integer, call integer, kind "char", payload jsonb, starts jsonb) returns pgflow.flow_frame, owner pgflow_owner
  -- The frame after one more unit of its journal
  plpgsql stable

function pgflow.force_cancel_run(key text, why text DEFAULT 'cancelled'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Ends a run without running any more of its code; what it has done and not taken back is owed (pgflow.obligations). For operators
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.forget_charges_(runs bigint[]) returns void, owner pgflow_owner
  -- Removes the charges of runs whose history goes; the sums of their pools stay
  plpgsql volatile
  set enable_seqscan=off

function pgflow.forget_declarations_(names text[]) returns void, owner pgflow_owner
  -- Forgets the declarations of dead workers for these schedules, or for all
  sql volatile
  set enable_indexscan=off

function pgflow.forget_events_(chains bigint[]) returns void, owner pgflow_owner
  -- The runs of these chains wait for no events any more
  sql volatile

function pgflow.forget_flow(workflow text) returns void, owner pgflow_owner
  -- Notes that a workflow was dropped: that its functions are gone shows the right to; PF006 while runs are open
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.forget_subject(subject text, why text, label text DEFAULT 'subject'::text, tenant text DEFAULT NULL::text, max integer DEFAULT 1000, is_dry boolean DEFAULT false, OUT removed integer, OUT open integer, OUT held integer, OUT owing integer) returns record, owner pgflow_owner
  -- Removes the families of runs that have a label with the name of a subject, once they have ended: of so many families in one call, so call it until removed = 0. Answers the runs that it removed, and the families that it left since they are open, under a legal hold or owe something. It records why, and no name. is_dry only counts. Without a tenant: those of the session, or of all
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_operator

function pgflow.fork_run(key text, new_key text DEFAULT NULL::text, at_seq integer DEFAULT NULL::integer, from_step text DEFAULT NULL::text, edit json DEFAULT NULL::json, input json DEFAULT NULL::json, effects text DEFAULT NULL::text, with_mail boolean DEFAULT false, generation integer DEFAULT NULL::integer, labels jsonb DEFAULT NULL::jsonb, attempts integer DEFAULT NULL::integer, timeout_seconds double precision DEFAULT NULL::double precision, why text DEFAULT 'forked'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, OUT run_key text, OUT run_id bigint, OUT is_new boolean, OUT lane_id integer, OUT seq integer) returns record, owner pgflow_owner
  -- Starts a run that begins with another's journal up to a unit, or before a step, and goes on by itself; the origin is not touched. PF020 if what is left out has acted, PF002 if the new key is taken
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.free_key_(key text, t timestamp with time zone, OUT to_wake bigint[], OUT is_put_off boolean) returns record, owner pgflow_owner
  -- After a holder has gone: lets the next one in, or leaves that to the sweep
  plpgsql volatile

function pgflow.free_key_(tenant text, parent bigint, key text) returns void, owner pgflow_owner
  -- Frees the key of a child that was handed over, has ended, and is asked for with other arguments
  sql volatile

function pgflow.free_keys_(tenant text, keys text[], key_seconds double precision, start_id uuid) returns void, owner pgflow_owner
  -- Frees those of these keys that count no longer, in the order of keys
  sql volatile

function pgflow.free_settled_(chains bigint[], ids bigint[], t timestamp with time zone) returns TABLE(run_id bigint, lane_id integer), owner pgflow_owner
  -- Held -> ready for runs that are stuck for want of an effect's outcome, once its outcome has been settled
  plpgsql volatile
  set enable_seqscan=off

function pgflow.free_stuck_(run_ids bigint[]) returns integer, owner pgflow_owner
  -- Lets stuck runs, which are locked, be tried again; answers how many
  sql volatile

function pgflow.fresh_frame_(run_id bigint) returns pgflow.flow_frame, owner pgflow_owner
  -- The frame of a run that has not begun, with the current version
  plpgsql stable

function pgflow.fresh_nodes_(run_id bigint) returns TABLE(node text, seq integer), owner pgflow_owner
  -- Nodes of a run of a file that are done again with every retry, each with where it began
  sql stable

function pgflow.from_micros_(us bigint) returns timestamp with time zone, owner pgflow_owner
  -- Converts microseconds since 1970 to a time
  sql immutable strict

function pgflow.gate_has_ended_(run_id bigint, call integer) returns boolean, owner pgflow_owner
  -- True if the journal has the verdict of a gate, and it did not go back; or the code gave it up
  sql stable

function pgflow.gate_now(run_id bigint, call integer, OUT approvers text[], OUT quorum integer, OUT answers json, OUT edit json, OUT payload_hash text) returns record, owner pgflow_owner
  -- Present state of an open gate, for the view gates: approvers, quorum, answers, and the request as edited last, with its hash
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.gate_rows_(list jsonb) returns TABLE(n integer, call integer, name text, key text, request json, hash text, approvers jsonb, quorum jsonb, timeout jsonb, on_timeout text, escalate jsonb, needs_value jsonb, decision text, shape jsonb), owner pgflow_owner
  -- Objects of the protocol as columns: gates to ask
  sql stable

function pgflow.get_documents(collection text, paths json, refresh boolean DEFAULT false) returns TABLE(path text[], value text, created_us bigint, updated_us bigint), owner pgflow_owner
  -- Documents of these paths, given as an array of arrays, as far as they are there. With refresh, the time to live of each begins anew
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.grant_budget(pool text, amounts jsonb, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Allows more of a pool in its current period: amounts by unit, such as {"usd": 10}, beyond its limits. PF026 if there is no such pool
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.grant_key_(wanted text, t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Serves the queue of a key that this transaction has to itself, as far as it goes; answers the chains to wake
  plpgsql volatile
  set enable_seqscan=off

function pgflow.grant_tenant(role text, tenant text) returns void, owner pgflow_owner
  -- Lets a login act for a tenant, and for no other but those that it was granted before. It must be a member of pgflow_tenant and of no other role of pgflow (else PF006), for instance not pgflow_client
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.grant_workflow(workflow text, role text, privilege text) returns void, owner pgflow_owner
  -- Grants a role, or public, the right to start, see or replace a workflow in SQL. PF021 if you do not own it; an operator grants rights to a name that is not taken
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.guard_table_(name text) returns void, owner pgflow_owner
  -- Makes a table append only, unless it is
  plpgsql volatile

function pgflow.hand_on_debts_(me bigint, cut integer, said text, why text, t timestamp with time zone) returns void, owner pgflow_owner
  -- Closes the debts of a run for what another takes back from now on: the generation that begins with its journal up to a cut, or, without a cut, its parent
  plpgsql volatile
  set enable_seqscan=off

function pgflow.hand_on_saga_(me bigint, chain bigint, generation integer, entries jsonb, of_children jsonb) returns void, owner pgflow_owner
  -- Hands effects of a run, [[call, place of its code], ...], and those of its children, by key, on to the next generation of its chain
  sql volatile
  set enable_seqscan=off

function pgflow.handed_rows_(list jsonb) returns TABLE(call integer, code text), owner pgflow_owner
  -- Rows of the protocol as columns: effects of a run that its next generation takes back if it fails
  sql stable

function pgflow.has_done_(chain bigint) returns boolean, owner pgflow_owner
  -- True if a run, or a child of it, has done effects, or may have, that were not taken back
  sql stable

function pgflow.has_long_number_(value text) returns boolean, owner pgflow_owner
  -- True if a JSON text holds more than 4,299 digits in a row outside of strings
  plpgsql immutable strict

function pgflow.has_passed(at timestamp with time zone) returns boolean, owner pgflow_owner
  -- True if a time is over by the database's clock: of a link, before it shows a gate
  sql volatile security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.has_ready(lanes integer[]) returns boolean, owner pgflow_owner
  -- True if a run of these lanes may be claimed
  sql stable security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.has_ready_flows(queues text[]) returns boolean, owner pgflow_owner
  -- True if a run of a workflow in SQL may be claimed from these queues
  sql stable security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.has_tenants() returns boolean, owner pgflow_owner
  -- True if some runs have a tenant and the session acts for all. A session of one tenant gets false
  sql stable security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.has_updates(names text[]) returns boolean, owner pgflow_owner
  -- True if an update of entities of these names was requested by SQL
  sql stable security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.has_word_(debt pgflow.owed) returns boolean, owner pgflow_owner
  -- True if the run of an effect has mail that says what became of it, and has not taken it yet
  sql stable

function pgflow.hash_(body text) returns bytea, owner pgflow_owner
  -- SHA-256 of a text in UTF-8, without the wraps of envelopes in it
  sql stable

function pgflow.hash_payload_(value json) returns text, owner pgflow_owner
  -- Hash of a request as it is stored: SHA-256 of its text, in hex
  sql immutable

function pgflow.hear_(questions jsonb, mailed integer[]) returns integer[], owner pgflow_owner
  -- Runs of a batch with mail that people want to pause; what was asked before they wanted it to go on is dropped
  plpgsql volatile
  set enable_seqscan=off

function pgflow.hear_late_(chains bigint[], t timestamp with time zone) returns void, owner pgflow_owner
  -- Takes the words on obligations that were sent to runs that have ended meanwhile; runs with another writer are left to the next wake
  plpgsql volatile
  set enable_seqscan=off

function pgflow.heir_of_(origin pgflow.run, cut integer, input json, mode text, attempts integer, timeout_seconds double precision, t timestamp with time zone) returns pgflow.run, owner pgflow_owner
  -- The row of a run that begins with the journal of another; whose chain it is, is left to the caller
  plpgsql volatile

function pgflow.held_locks_(f pgflow.flow_frame) returns TABLE(node text, call integer, key text, fence bigint), owner pgflow_owner
  -- Locks that a run in SQL holds, by the nodes that took them
  sql immutable

function pgflow.heritage_(run_id bigint, heritage jsonb) returns jsonb, owner pgflow_owner
  -- Facts for a worker on a run that begins with the journal of another; null of any other run
  plpgsql stable

function pgflow.hold_(run bigint, seq integer, t timestamp with time zone, why jsonb, noted jsonb DEFAULT NULL::jsonb) returns void, owner pgflow_owner
  -- Lease -> held, for a reason as a question has it, perhaps with another detail
  sql volatile

function pgflow.hold_history(key text, why text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Puts a legal hold on a run: nothing removes it, or what belongs to its family, until release_history(). PF001 if no run has the key
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.hold_relay(name text, token bigint, lease_seconds double precision) returns boolean, owner pgflow_owner
  -- Prolongs the lease of a relay; false if another has it
  sql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.hold_rows_(list jsonb) returns TABLE(call integer, key text, fence bigint, is_given_back boolean), owner pgflow_owner
  -- Rows of the protocol as columns: blocks that hold locks
  sql stable

function pgflow.hold_still_(child bigint) returns bigint, owner pgflow_owner
  -- Locks an open run where it is, a lease too, so that it ends neither meanwhile nor unheard; null = it has ended
  plpgsql volatile

function pgflow.horizon_(newest bigint, me xid8, oldest xid8, INOUT horizon bigint, INOUT seen_id bigint, INOUT seen_xid xid8) returns record, owner pgflow_owner
  -- A horizon, and the one that comes next, brought on. The newest number must have been read before the reader had the number of its transaction, and that before the oldest one that is open
  plpgsql immutable

function pgflow.idle_state() returns TABLE(idle boolean, next_due_at timestamp with time zone, due_timers bigint), owner pgflow_owner
  -- True if nothing is ready, leased, nudged, due or to be brought to a run; the time of the next timer; and the number that are due
  sql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_worker

function pgflow.import_run(history json) returns bigint, owner pgflow_owner
  -- Inserts a run that another database exported, as history that nothing can execute; answers its number here. PF002 if the key or the run is known, PF003 if the text is not a history
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.inherit_gates_(heir bigint, cut integer) returns void, owner pgflow_owner
  -- Opens the gates of a run that begins with the journal of another, where they are open: each under its own key
  plpgsql volatile

function pgflow.insert_history_(history json, header jsonb, t timestamp with time zone) returns bigint, owner pgflow_owner
  -- Inserts a run that has ended, with its journal
  plpgsql volatile

function pgflow.insert_run_(tenant text, key text, workflow text, queue text, version text, priority integer, input json, run_at timestamp with time zone, deadline_at timestamp with time zone, labels jsonb, metadata jsonb, parent_run_id bigint, parent_call integer, close_policy "char", root_run_id bigint, defaults json DEFAULT NULL::json, start_id uuid DEFAULT NULL::uuid, pool text DEFAULT NULL::text, budget jsonb DEFAULT NULL::jsonb, OUT run_id bigint, OUT run_key text, OUT is_new boolean, OUT lane_id integer, OUT clash text) returns record, owner pgflow_owner
  -- Inserts one run with its key and place, or finds the run that the key already names; clash says how that one differs
  plpgsql volatile

function pgflow.intend_(me bigint, token bigint, intents jsonb, t timestamp with time zone, INOUT seq integer, OUT units jsonb, OUT refused jsonb, OUT terms jsonb) returns record, owner pgflow_owner
  -- Records the intents and further attempts that a flush asks for; refused = those that the policy does not let through, terms = those of the gates at which leave is asked
  plpgsql volatile

function pgflow.intend_all_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb, more jsonb), owner pgflow_owner
  -- Records the intents and further attempts of a batch: of each position the last seq then, its units, and what the policy does not let through
  plpgsql volatile

function pgflow.intent_rows_(list jsonb) returns TABLE(call integer, name text, key text, args_hash bigint, ordinal jsonb, request text, risk text, code text, is_keyed boolean, decision text, compensates text, reads jsonb, ground "char", seconds interval, expects text, notice jsonb, is_undo boolean, leave text), owner pgflow_owner
  -- Objects of the protocol as columns: requests for leave to attempt effects
  sql stable

function pgflow.intern_lane_(queue text, workflow text, version text, is_start boolean DEFAULT false) returns integer, owner pgflow_owner
  -- The lane of (queue, workflow, version), made if it is new; for a start, refused (PF003) if names that no worker knows are too many
  plpgsql volatile

function pgflow.is_alias_(old_name text, name text) returns boolean, owner pgflow_owner
  -- True if a worker has registered this name as an earlier one of the workflow
  sql stable

function pgflow.is_asked_(kind text, questions jsonb, has_mail boolean, is_pausing boolean) returns boolean, owner pgflow_owner
  -- True if questions need answers of a kind
  sql immutable

function pgflow.is_batch_due_(b pgflow.batch) returns boolean, owner pgflow_owner
  -- True if a poll finds that a member has ended, or all
  plpgsql stable

function pgflow.is_by_model_(me bigint, decision text) returns boolean, owner pgflow_owner
  -- True if an effect of a run rests on a decision that names a model, or on one that cannot be looked at
  sql stable

function pgflow.is_chain_open_(chain bigint, claimed bigint) returns boolean, owner pgflow_owner
  -- True if a chain, of which this generation was claimed last, has not ended
  sql stable

function pgflow.is_closed_(gate text) returns boolean, owner pgflow_owner
  -- True if an answer that counts has closed a gate
  sql stable

function pgflow.is_envelope_(value jsonb) returns boolean, owner pgflow_owner
  -- True if a value was encoded by the codec of an app
  sql immutable

function pgflow.is_first_(chain bigint, key text, name text, payload json, OUT is_first boolean, OUT message_id bigint, OUT ended_as text) returns record, owner pgflow_owner
  -- True if a message is sent to a chain for the first time under an idempotency key; else which one was, and how the run ended if it did not take that
  plpgsql volatile

function pgflow.is_forced_(run_id bigint) returns boolean, owner pgflow_owner
  -- True if a run was ended by force, without its code
  sql stable

function pgflow.is_fresh_(step text, nodes text[]) returns boolean, owner pgflow_owner
  -- True for a step of one of these nodes, in any round and try of it
  sql immutable

function pgflow.is_handed_on_(run_id bigint, seq integer) returns boolean, owner pgflow_owner
  -- True if another run owes what a unit opened: the generation that took it over, or the origin of a fork
  sql stable

function pgflow.is_judgeable_(request jsonb, path text) returns boolean, owner pgflow_owner
  -- True if a rule of the policy can see what its jsonpath looks at, of a request that may be encoded
  sql immutable

function pgflow.is_kept_by_(worker_id integer, t timestamp with time zone, OUT is_mine boolean, OUT wait_seconds double precision) returns record, owner pgflow_owner
  -- True if a worker is to look after the schedules, which it says anew each time; else when it asks again
  plpgsql volatile

function pgflow.is_kin_(parent bigint, queue text, key text) returns boolean, owner pgflow_owner
  -- True if a parent, or an ancestor of it, has a turn of this key
  sql stable

function pgflow.is_of_file_(run_id bigint) returns boolean, owner pgflow_owner
  -- True for a run of a workflow file
  sql stable

function pgflow.is_open_(chain bigint) returns boolean, owner pgflow_owner
  -- True if the newest generation of a chain has not ended
  sql stable

function pgflow.is_open_to_(key text, shared boolean) returns boolean, owner pgflow_owner
  -- True if a key is free, or shared by all holders and the next one
  plpgsql volatile
  set enable_seqscan=off

function pgflow.is_own_(chain bigint, start_id uuid) returns boolean, owner pgflow_owner
  -- True if a chain was started by the very start that asks: its answer was lost, and it is sent again
  sql stable

function pgflow.is_recorded_redaction_(me bigint, seq integer, what text, body text) returns boolean, owner pgflow_owner
  -- True if a unit says that this value was redacted to what is there now
  sql stable

function pgflow.is_redacted_(body text) returns boolean, owner pgflow_owner
  -- True if a value's text stands for one that was redacted
  sql immutable

function pgflow.is_returned_(run_id bigint, seq integer) returns boolean, owner pgflow_owner
  -- True if a message that was taken at a unit went back to the mailbox
  sql stable

function pgflow.is_same_(value json, other json) returns boolean, owner pgflow_owner
  -- True if two values have the same text, be it that a rotation of keys has reached only one of them
  sql immutable

function pgflow.is_short_object_(body text) returns boolean, owner pgflow_owner
  -- True if the text of a json value is plainly an object that check_json_ accepts; false says nothing
  sql immutable

function pgflow.is_to_be_undone_(child bigint, key text) returns boolean, owner pgflow_owner
  -- True if an effect that a child left to its parent can be taken back
  sql stable

function pgflow.is_transient_(error jsonb) returns boolean, owner pgflow_owner
  -- True if an error says nothing about the statement: it is tried again, and not counted
  sql immutable

function pgflow.is_undoing_(run_id bigint, cut integer) returns boolean, owner pgflow_owner
  -- True if a run has yet to take back a dropped part before its code goes on
  sql stable

function pgflow.is_wanted_(lower bigint, upper bigint) returns boolean, owner pgflow_owner
  -- True if some relay has not taken all of its events among these numbers, or they were not compared with what a run waits for
  sql stable

function pgflow.join_citus_() returns text, owner pgflow_owner
  -- Makes each transaction that writes pgflow's tables commit in two phases, on a node of Citus; pgflow migrate calls it. Returns 'citus', 'alone' (no nodes yet) or 'plain'; raises PF006 if that cannot be done
  plpgsql volatile

function pgflow.joined_(one json, other json) returns json, owner pgflow_owner
  -- Two inputs of one list as one; null if the first is none, or of another parameter. The second is checked
  sql immutable

function pgflow.journal_(run_id bigint, after_seq integer, max_bytes integer) returns text, owner pgflow_owner
  -- Units after a seq as JSON [[seq, call, kind, name, payload as exact text, starts, at, due_at], ...], at most about max_bytes of them
  sql stable

function pgflow.json_columns_() returns TABLE(name text, columns text[]), owner pgflow_owner
  -- Tables with values, and the columns of these
  sql stable

function pgflow.json_depth_(value text) returns integer, owner pgflow_owner
  -- Depth to which a JSON text is nested
  plpgsql immutable strict

function pgflow.judge_plan(acts jsonb) returns jsonb, owner pgflow_owner
  -- Judgement of the policy in force on acts [[name, risk, request], ...] that a model has planned: for each the version that wants a gate, with its terms, or null
  sql stable security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.judge_queue_(q pgflow.queue, workflow text, version text) returns boolean, owner pgflow_owner
  -- Refuses (PF003, PF006) a start that a queue does not take; true if its runs stand in a line
  plpgsql stable

function pgflow.keep_key_(chain bigint, key text, message bigint) returns void, owner pgflow_owner
  -- Remembers which message was sent under an idempotency key
  sql volatile

function pgflow.keep_schedules(worker_id integer, max integer DEFAULT 100, at_once boolean DEFAULT false) returns TABLE(fired integer, lanes integer[], cancelled bigint[], undeclared text[], troubles text[], refills json, wait_seconds double precision), owner pgflow_owner
  -- Fires what is due, if this worker is the one to do it, or at once; answers how many runs were started, in which lanes, which chains were cancelled, which schedules no code declares any more, what kept runs from starting, for which ones slots have to be computed (refill_schedules), and the seconds until the next look, or, at once, until the next slot (null = there is none)
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.keep_undo_(f pgflow.flow_frame, undo integer[], vars jsonb) returns void, owner pgflow_owner
  -- Keeps the variables behind a step for its compensation, and drops them once it is done
  plpgsql volatile

function pgflow.key_counts_(chain bigint, key_seconds double precision) returns boolean, owner pgflow_owner
  -- True if a chain is open, or was started less than so many seconds ago: then it still has its key
  sql volatile

function pgflow.keys_as_uuids_(runs jsonb) returns uuid[], owner pgflow_owner
  -- The keys of a batch as UUIDs; refuses (PF003) what is none
  plpgsql immutable

function pgflow.known_code_(workflow text, version text, OUT defaults json, OUT shapes jsonb[], OUT code_ids integer[]) returns record, owner pgflow_owner
  -- Reads the recorded code of a workflow once: the defaults of its parameters in the code that was served last; the shapes of the parameters, and the numbers, of the code in force, which living workers have, or else was served last. No version = any; nulls = none is known
  plpgsql stable

function pgflow.known_pool_(name text) returns pgflow.pool, owner pgflow_owner
  -- A pool, locked; PF026 if there is none of this name
  plpgsql volatile

function pgflow.known_schedule_(name text) returns pgflow.schedule, owner pgflow_owner
  -- Locks a schedule and answers it; PF027 if there is none
  plpgsql volatile

function pgflow.labels_at_start_(run_id bigint, labels jsonb) returns jsonb, owner pgflow_owner
  -- Labels that a run was started with, given its number and the labels that it has now
  sql stable

function pgflow.lacking_(names text[], periods timestamp with time zone[], amounts jsonb, OUT reason text, OUT pool text, OUT unit text, OUT allowed numeric, OUT remaining numeric, OUT asked numeric) returns record, owner pgflow_owner
  -- Reason why pools do not admit these amounts: no_pool, revoked, or used_up with the unit and what is left; null = they do. A pool with a limit that is used up admits nothing at all
  plpgsql stable
  set enable_seqscan=off

function pgflow.latch_(name text) returns bigint, owner pgflow_owner
  -- Number of the advisory lock of a name, which only this installation can compute
  plpgsql stable

function pgflow.latch_of_(salt bytea, name text) returns bigint, owner pgflow_owner
  -- Number of the advisory lock of a name, with the secret at hand: what is hot joins that to save a call
  sql stable

function pgflow.later_look_(s pgflow.schedule, t timestamp with time zone) returns timestamp with time zone, owner pgflow_owner
  -- Time at which a schedule is to be looked at next
  sql stable

function pgflow.leave_(me bigint, why text, t timestamp with time zone) returns void, owner pgflow_owner
  -- Ends a generation whose place is locked, or that has ended, as continued by another
  plpgsql volatile

function pgflow.leave_all_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, place text, to_wake bigint[], lanes integer[]), owner pgflow_owner
  -- Holds runs of a batch, or ends them as the next generations of their chains: of each its new place, and whom to wake
  plpgsql volatile

function pgflow.leave_block_(INOUT f pgflow.flow_frame, worker_id integer, token bigint, chain bigint, try integer, OUT wake jsonb) returns record, owner pgflow_owner
  -- Goes on with the handler of a block that has failed, once what was done in it is taken back
  plpgsql volatile

function pgflow.leave_code_(worker_id integer, t timestamp with time zone) returns void, owner pgflow_owner
  -- A worker is gone: what code it had was served until now
  plpgsql volatile

function pgflow.leave_keys_(run bigint, children jsonb) returns void, owner pgflow_owner
  -- Gives back keys that this transaction has taken for children that will not be
  sql volatile

function pgflow.leave_line_(queue text, max integer) returns integer[], owner pgflow_owner
  -- Moves runs from the line of a queue to ready, except those that are locked; returns their lanes
  plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.leave_lock(key text, holder text, secret text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Removes plain code from the queue of a lock, or releases the lock if its turn has just come. It needs the secret; without it, nothing changes
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.leave_obligations_(run_ids bigint[], t timestamp with time zone) returns void, owner pgflow_owner
  -- Leaves to people what runs owe that have failed or were cancelled
  sql volatile
  set enable_seqscan=off

function pgflow.leave_of_(me bigint, leave text, name text, request jsonb) returns json, owner pgflow_owner
  -- The verdict by which a gate of a run lets an effect act with these arguments, once; null = it does not
  sql stable

function pgflow.leave_queues_(run_ids bigint[], calls integer[], t timestamp with time zone) returns void, owner pgflow_owner
  -- Takes waits of runs out of their queues, all of a run where no call is named; nudges where those behind may share what they wait for
  plpgsql volatile
  set enable_seqscan=off

function pgflow.leave_worker(worker_id integer) returns void, owner pgflow_owner
  -- A worker that holds nothing any more takes its leave
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.leaves_(this_round bigint, runs bigint[]) returns bytea[], owner pgflow_owner
  -- Leaves of a round: the seals of its runs, and behind them its evidence
  sql stable

function pgflow.leaves_effects_(child bigint, chain bigint) returns boolean, owner pgflow_owner
  -- True if a run, or a child of it, may have done what its parent takes back
  plpgsql stable
  set enable_seqscan=off

function pgflow.left_done_(me bigint) returns TABLE(call integer, name text, key text), owner pgflow_owner
  -- Effects that a run has done, or was given to take back, and has not begun to take back; call = null for those that it has not done itself
  sql stable
  set enable_seqscan=off

function pgflow.left_locks_(run_id bigint, cut integer, is_fork boolean) returns TABLE(seq integer, key text, given_back_at integer), owner pgflow_owner
  -- Locks in whose blocks a cut stands, and that the run which goes on from there would not hold
  plpgsql stable
  set enable_seqscan=off

function pgflow.lend_saga_(origin pgflow.run, chain bigint) returns void, owner pgflow_owner
  -- Shows a fork what its origin had from earlier generations, so that it can repeat the copied part
  sql volatile
  set enable_seqscan=off

function pgflow.let_go_(INOUT f pgflow.flow_frame, token bigint, OUT wake jsonb) returns record, owner pgflow_owner
  -- Gives back and up, before the handler of a workflow, what it has held and waited for
  plpgsql volatile

function pgflow.licensed_hash_(starts json) returns bigint, owner pgflow_owner
  -- Hash of the arguments in the first licence of a unit
  sql stable

function pgflow.line_heads_(queue text, fresh boolean, key text, lanes integer[], in_order boolean, max integer, t timestamp with time zone, passing boolean) returns bigint[], owner pgflow_owner
  -- The first runs of a key, locked, except those that are being paused or cancelled; or the first that may pass those that have its turn. Its caller says what the planner may do
  plpgsql volatile

function pgflow.line_key_(expression text, tenant text, workflow text, labels jsonb, input json) returns text, owner pgflow_owner
  -- The key of a run by an expression such as `tenant, input.customer.id`; empty without one, as is what a run lacks
  sql immutable

function pgflow.line_opens_(queue text, rate integer, seconds double precision, burst integer, t timestamp with time zone) returns timestamp with time zone, owner pgflow_owner
  -- Time at which the rate of a queue that is used up lets the next run begin
  sql stable

function pgflow.line_room_(queue text, scope "char", key text, rate integer, seconds double precision, burst integer, t timestamp with time zone) returns integer, owner pgflow_owner
  -- Number of runs that a rate lets begin now
  sql stable

function pgflow.line_slot_(at timestamp with time zone, seconds double precision) returns bigint, owner pgflow_owner
  -- Number of the hundredth of a window in which a time lies
  sql immutable

function pgflow.line_up_(ids bigint[]) returns void, owner pgflow_owner
  -- Ready -> in the line of their queues, for runs whose ready rows are locked or new
  plpgsql volatile
  set enable_seqscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan

function pgflow.line_use_(queue text, scope "char", keys text[], counts integer[], rate integer, seconds double precision, burst integer, t timestamp with time zone) returns void, owner pgflow_owner
  -- Counts runs that begin, by key
  plpgsql volatile

function pgflow.list_documents(collection text, prefix text[] DEFAULT '{}'::text[], after text[] DEFAULT NULL::text[], descending boolean DEFAULT false, most integer DEFAULT 100) returns TABLE(path text[], value text, created_us bigint, updated_us bigint), owner pgflow_owner
  -- Page of the documents in a folder and in those below, in the order of their paths, or against it. `after` is the last path of the page before
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.list_ended(place jsonb DEFAULT NULL::jsonb, max integer DEFAULT 1000) returns TABLE(chains bigint[], next jsonb, has_more boolean), owner pgflow_owner
  -- Chains that have ended since a place, each once, those of the session's tenants; the place to go on from, which names the runs that were open, and whether there is more to read at once. Its `removed` is how many runs at most were removed before they were listed. A run that is done again after its end is not listed a second time. Nothing is removed until the transaction ends: read them in it
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_operator

function pgflow.list_folders(collection text) returns TABLE(folder text[]), owner pgflow_owner
  -- Folders of a collection that have documents
  sql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.load_units(run_id bigint, after_seq integer) returns text, owner pgflow_owner
  -- The next page of a journal that was too long for the answer of the claim; null at its end
  sql stable security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.lock_chain_(chain bigint) returns void, owner pgflow_owner
  -- Keeps others from rewinding a chain or removing it, until the end of the transaction
  plpgsql volatile

function pgflow.lock_flow(workflow text) returns void, owner pgflow_owner
  -- Has versions of a workflow be made one after another
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.lock_leases_(batch jsonb, careful boolean) returns boolean, owner pgflow_owner
  -- Keeps the leases of a batch where they are, by the lock of their worker or one by one; true if it has all of them
  plpgsql volatile

function pgflow.lock_pools_(names text[]) returns void, owner pgflow_owner
  -- Locks pools in the order of their names
  plpgsql volatile
  set enable_seqscan=off

function pgflow.lock_rows_(list jsonb) returns TABLE(n integer, call integer, key text, is_shared boolean, ttl interval, seq integer, within bigint[]), owner pgflow_owner
  -- Rows of the protocol as columns: waits for locks
  sql stable

function pgflow.lock_unbegun_(me bigint) returns text, owner pgflow_owner
  -- Locks the place of a run that has not been claimed or paused, and returns which it is; null if it has begun
  plpgsql volatile

function pgflow.look_again_(ids bigint[]) returns void, owner pgflow_owner
  -- Has the sealer look again at runs that may have ended, and whose journal or outcome is being added to
  sql volatile

function pgflow.look_all_(questions jsonb, positions integer[], seqs integer[], has_mail integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb), owner pgflow_owner
  -- Takes what has happened to runs of a batch, of each in the order in which it happened, and records it: of each position with news the last seq then, and its units
  plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off

function pgflow.look_at_schedule_(s pgflow.schedule, t timestamp with time zone, OUT fired integer, OUT lanes integer[], OUT cancelled bigint[], OUT trouble text) returns record, owner pgflow_owner
  -- Decides the slots of a schedule that are due: starts runs, cancels those before, buffers, or lets them pass
  plpgsql volatile

function pgflow.lost_runs(run_ids bigint[], tokens bigint[], seqs integer[], has_ended boolean[]) returns SETOF bigint, owner pgflow_owner
  -- Those runs that lack the unit that this token wrote as this seq, or the outcome if they have ended
  sql stable security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.mailed_(questions jsonb, positions integer[]) returns integer[], owner pgflow_owner
  -- Positions of the runs of a batch whose mailboxes are not empty
  sql volatile
  set enable_seqscan=off

function pgflow.make_anchor_() returns void, owner pgflow_owner
  -- Makes the table into which nothing is copied, on the coordinator of Citus
  plpgsql volatile

function pgflow.make_own_pools_(roots uuid[], parent text, budget jsonb, t timestamp with time zone) returns void, owner pgflow_owner
  -- Makes the pools that runs have of their own, which draw on another
  sql volatile

function pgflow.mark_(f pgflow.flow_frame) returns jsonb, owner pgflow_owner
  -- The mark of the next unit: the place at which its run is
  sql stable

function pgflow.match_events_(max integer) returns boolean, owner pgflow_owner
  -- Compares the next events with what runs wait for, and posts those that fit; true if there is more to do at once
  plpgsql volatile
  set enable_seqscan=off

function pgflow.may_pass_(id bigint, queue text, key text) returns boolean, owner pgflow_owner
  -- True if all that have a turn of this key are ancestors of a run, and wait for it
  sql volatile

function pgflow.mended_(me bigint, chain bigint, place json, verb text, message bigint, name text, why text, said_by text, OUT lane_id integer) returns integer, owner pgflow_owner
  -- Lets a run go on that was stuck for want of a message, once no message is left that it could not take; answers its lane
  plpgsql volatile

function pgflow.merkle_levels_(leaves bytea[]) returns SETOF bytea[], owner pgflow_owner
  -- The levels of a Merkle tree over so many hashes, the leaves first
  plpgsql immutable

function pgflow.merkle_path_(leaves bytea[], place integer) returns jsonb, owner pgflow_owner
  -- The way from a leaf, counted from 1, to the root: [["left" or "right", hash of that neighbour], ...]
  plpgsql immutable

function pgflow.merkle_root_(leaves bytea[]) returns bytea, owner pgflow_owner
  -- Merkle root over hashes, in their order
  sql immutable

function pgflow.micros_(at timestamp with time zone) returns bigint, owner pgflow_owner
  -- A time as microseconds since 1970, exactly: the form in which times travel to a worker
  sql immutable strict

function pgflow.misfit_(shape jsonb, value jsonb, place text DEFAULT ''::text) returns text, owner pgflow_owner
  -- Reason why a value does not fit a shape; null = it may fit
  plpgsql immutable

function pgflow.move_beats_(origin bigint, old_call integer, heir bigint, new_call integer) returns void, owner pgflow_owner
  -- Moves the beats of an accepted effect to the generation that owes it now, whose journal and debt exist already
  plpgsql volatile

function pgflow.move_locks_(origin bigint, cut integer, heir bigint, t timestamp with time zone) returns void, owner pgflow_owner
  -- Hands the locks that a run had won before a cut to the generation that goes on from there, and gives back the others
  plpgsql volatile
  set enable_seqscan=off

function pgflow.move_owed_(origin bigint, cut integer, heir bigint) returns void, owner pgflow_owner
  -- Hands what was owed before a cut to the new generation; the rest stays owed by the old one
  sql volatile

function pgflow.move_slots_(queue text, scope "char", was double precision, becomes double precision) returns void, owner pgflow_owner
  -- Counts what has begun by the hundredths of a window of another length
  sql volatile

function pgflow.move_words_(origin bigint, chain bigint, heir bigint, t timestamp with time zone) returns void, owner pgflow_owner
  -- Hands pending verdicts on open effects to the generation that owes them now, and records those on effects that the old one keeps
  plpgsql volatile

function pgflow.name_blobs_() returns trigger, owner pgflow_owner
  -- Notes which blobs a new value of a run names
  plpgsql volatile

function pgflow.names_of_(path json) returns text[], owner pgflow_owner
  -- Array of the texts of a JSON array; PF003 if it is none
  plpgsql immutable

function pgflow.needs_(name text, risk text, request jsonb, me bigint DEFAULT NULL::bigint, decision text DEFAULT NULL::text, is_planned boolean DEFAULT false, OUT version integer, OUT needs text, OUT terms jsonb) returns record, owner pgflow_owner
  -- Judgement of the policy in force on an effect of a run: its version, gate, nothing or null where no rule fits, and the terms of the gate where the rule says any
  plpgsql stable

function pgflow.needs_person_() returns TABLE(run_id bigint, call integer, kind text, opened_at timestamp with time zone, name text, detail json, effect text), owner pgflow_owner
  -- Needs for a person, each with its time: stuck runs, and effects and obligations that no run handles
  sql stable

function pgflow.new_gate_(f pgflow.flow_frame, node pgflow.flow_node, call integer, value jsonb) returns jsonb, owner pgflow_owner
  -- A gate that is to be asked, as a question names it
  sql stable

function pgflow.new_run_rows_(list jsonb) returns TABLE(n integer, wanted jsonb, key text, input text), owner pgflow_owner
  -- Rows of the protocol as columns: runs to start in one call
  sql stable

function pgflow.newest_declarations_(names text[] DEFAULT NULL::text[]) returns TABLE(name text, worker_id integer, declared jsonb), owner pgflow_owner
  -- The valid declaration of each schedule, or of these: the youngest of those by living workers
  sql stable
  set enable_indexscan=off

function pgflow.newest_event_() returns bigint, owner pgflow_owner
  -- The greatest number that an event has drawn, committed or not
  sql volatile

function pgflow.newest_run_(chain bigint) returns bigint, owner pgflow_owner
  -- The newest generation of a chain
  sql stable

function pgflow.next_children_(f pgflow.flow_frame, node pgflow.flow_node) returns jsonb, owner pgflow_owner
  -- The question of a for each: the children that may start now, and all that are waited for; null once all have ended
  plpgsql volatile

function pgflow.next_fence_() returns bigint, owner pgflow_owner
  -- Draws the number of a lock that is won: greater than that of every holder before, once this is committed
  plpgsql volatile

function pgflow.next_time(cron text, zone text DEFAULT 'UTC'::text, after timestamp with time zone DEFAULT now()) returns timestamp with time zone, owner pgflow_owner
  -- The next time after one that an expression of cron names in a time zone; null if there is none. Where clocks change it is that of schedules. PF003 if it is not an expression
  sql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.next_turn(queues text[], OUT seconds double precision, OUT is_limited boolean) returns record, owner pgflow_owner
  -- Seconds until a rate lets a run of these queues begin that waits for it; 3600 if none does, null if none of them has a rate. And whether any of them has a limit, so that the end of a run may let another begin
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_worker

function pgflow.note_breach_(me bigint, call integer, name text, obligation text, due_us bigint, token bigint, t timestamp with time zone, INOUT seq integer, OUT units jsonb) returns record, owner pgflow_owner
  -- Records that an obligation was due and not discharged
  plpgsql volatile

function pgflow.note_change_(pool text, what text, said jsonb, why text, sent_by text, t timestamp with time zone) returns void, owner pgflow_owner
  -- Records the author and the reason of a change of a pool
  plpgsql volatile

function pgflow.note_confirmation_(ref text, chain bigint, verdict text, said_by text, t timestamp with time zone) returns void, owner pgflow_owner
  -- Records the outcome of a reference, so that repeated confirmations are recognised
  sql volatile

function pgflow.note_evidence_(kind text, key json, run_id bigint DEFAULT NULL::bigint) returns void, owner pgflow_owner
  -- Notes a row that was just written, so that it is sealed. Every function that writes such a row calls this
  sql volatile

function pgflow.note_operator_(me bigint, chain bigint, last_word bigint, INOUT last_seq integer, t timestamp with time zone) returns integer, owner pgflow_owner
  -- Turns requests to pause or go on, up to the last one seen, into units that say who did what and why
  plpgsql volatile

function pgflow.note_queue_(queue text, what text, said jsonb, why text, sent_by text, t timestamp with time zone) returns void, owner pgflow_owner
  -- Records a change of a queue, and by whom
  plpgsql volatile

function pgflow.note_refused_(chain bigint, refused jsonb, why jsonb) returns jsonb, owner pgflow_owner
  -- Marks the messages that a run could not take; answers the detail of its hold with the number of the one it names
  plpgsql volatile
  set enable_seqscan=off

function pgflow.note_relay_(name text, what text, said jsonb, why text, sent_by text) returns void, owner pgflow_owner
  -- Records the author and the reason of a command to a relay
  plpgsql volatile

function pgflow.note_schedule_(name text, what text, why text, said_by text, at timestamp with time zone, detail jsonb DEFAULT NULL::jsonb) returns void, owner pgflow_owner
  -- Records the author and the reason of a change of a schedule
  plpgsql volatile

function pgflow.note_silence_(me bigint, call integer, name text, token bigint, t timestamp with time zone, is_over boolean, INOUT seq integer, OUT units jsonb) returns record, owner pgflow_owner
  -- Records the outcome of an accepted effect as unknown, because its beats have stopped
  plpgsql volatile

function pgflow.note_taken_back_(chain bigint, origin bigint, generation integer, cut integer) returns void, owner pgflow_owner
  -- Remembers what the dropped part of a generation had taken back, or had begun to: the next one must not do it again
  sql volatile
  set enable_seqscan=off

function pgflow.notice_breaches_(max integer, t timestamp with time zone) returns integer[], owner pgflow_owner
  -- Finds obligations that are due, notes that they are breached and does, once, what was agreed on; answers the lanes of workflows that it has started
  plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.notice_failure_(b pgflow.batch, max integer, t timestamp with time zone) returns integer, owner pgflow_owner
  -- Looks for a member that has failed: of a locked batch as it was before it advanced, at those that were passed since, and at up to max more, where the last look ended. Starts what begins with it; answers its lane then
  plpgsql volatile
  set enable_seqscan=off

function pgflow.notice_silence_(max integer, t timestamp with time zone) returns void, owner pgflow_owner
  -- Notifies runs of accepted effects whose beats have stopped; for finished runs, records it
  plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.now_() returns timestamp with time zone, owner pgflow_owner
  -- The database's clock, which alone decides what is due or expired
  sql volatile

function pgflow.nudge_asked_(chains bigint[]) returns bigint[], owner pgflow_owner
  -- Nudges those of the runs taken from their leases that have mail, except for a cancel that has been tried
  plpgsql volatile

function pgflow.nudge_key_(key text) returns void, owner pgflow_owner
  -- After plain code has changed who holds a key, or waits for it: leaves it to the sweep to let the next one in, if there may be one
  plpgsql volatile
  set enable_seqscan=off

function pgflow.observe_workers() returns TABLE(worker_id integer, beat bigint), owner pgflow_owner
  -- The beats of all workers; -1 for one that is gone and still has leases
  sql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.offer_updates_(questions jsonb, positions integer[]) returns TABLE(pos integer, offers jsonb), owner pgflow_owner
  -- Updates that wait in the mailboxes of runs whose code would take one, the oldest first, as [[message, name, payload, true if it was taken before a rewind], ...]
  plpgsql volatile
  set enable_seqscan=off

function pgflow.on_batch_failure(batch text, workflow text, input json DEFAULT '{}'::json, queue text DEFAULT 'default'::text, tenant text DEFAULT ''::text) returns void, owner pgflow_owner
  -- Has a run of this workflow begin with the first failure in a batch, once: its key is that of the batch with /failed behind it, and its labels batch and failed name the batch and the member. PF001: no run that has a batch has the key; PF002: the batch begins another; PF003: no run can have this input; PF006: the batch is over
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.only_messages_(chains bigint[], runs bigint[]) returns TABLE(chain bigint, message jsonb), owner pgflow_owner
  -- Of chains with their runs, the message that is all there is in the mailbox, which the holder may take without asking first: [number, name, payload, sent] of a signal; with call and workflow, the result of a child that leaves no effects to be taken back. Other chains are not answered
  plpgsql stable
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.open_blob(tenant text DEFAULT ''::text) returns bigint, owner pgflow_owner
  -- Begins a blob for runs of a tenant, and answers its number: add chunks, finish it, and store a value that names it, all in this transaction
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.open_block_(f pgflow.flow_frame) returns integer, owner pgflow_owner
  -- The inmost block with a handler that a run is in
  sql immutable

function pgflow.open_children_(me bigint) returns jsonb, owner pgflow_owner
  -- Chains of children of a run that have not ended and were not cancelled
  sql stable

function pgflow.open_entity(name text, key text, expect bigint DEFAULT NULL::bigint, update text DEFAULT NULL::text, idempotency_key text DEFAULT NULL::text, idle_timeout_ms integer DEFAULT 0, OUT version bigint, OUT state text, OUT at_us bigint, OUT verdict text) returns record, owner pgflow_owner
  -- Locks an entity until the end of the transaction: its version and state, null for its first one, the time, and the verdict of the update that was made under this idempotency key. PF024 if it has another version than expected; PF003 if the key is of another update. With an idle timeout, a caller that is frozen is cut off
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.open_gate_(me bigint, asked_seq integer) returns void, owner pgflow_owner
  -- Opens the gate that a unit asked for, and owes its answer
  plpgsql volatile

function pgflow.open_spend_(names text[], periods timestamp with time zone[], units text[]) returns void, owner pgflow_owner
  -- Makes the rows of a period that are not there yet: a pool is full again with the first draw of a period. After it, sums are those of now
  plpgsql volatile
  set enable_seqscan=off

function pgflow.outcome_text_(o pgflow.outcome) returns text, owner pgflow_owner
  -- All of an outcome as one text, with the hashes of its values
  sql stable

function pgflow.owe_(me bigint, call integer, name text, key text, reason text, t timestamp with time zone, INOUT seq integer) returns integer, owner pgflow_owner
  -- Opens a debt: an effect that was done and not taken back
  plpgsql volatile

function pgflow.owe_by_force_(me bigint, chain bigint, t timestamp with time zone, INOUT seq integer) returns integer, owner pgflow_owner
  -- Before a run is ended by force: applies the verdicts on its effects, and opens a debt for each that stays done
  plpgsql volatile

function pgflow.owe_for_parent_(children bigint[], t timestamp with time zone) returns void, owner pgflow_owner
  -- Opens debts for what completed children did, if their parent was ended by force before it had their results
  plpgsql volatile
  set enable_seqscan=off

function pgflow.owe_left_(me bigint, reason text, t timestamp with time zone, INOUT seq integer) returns integer, owner pgflow_owner
  -- Opens a debt for each effect that a run leaves behind without a compensation
  plpgsql volatile

function pgflow.owed_undo_(f pgflow.flow_frame, node pgflow.flow_node) returns integer[], owner pgflow_owner
  -- Compensations of what is done, after a step that has one or is one
  plpgsql immutable

function pgflow.own_blob_(blob bigint) returns void, owner pgflow_owner
  -- Refuses (PF006) a blob that this transaction is not storing
  plpgsql volatile

function pgflow.own_line_(root uuid, parent text) returns text[], owner pgflow_owner
  -- The pool of a run and its ancestors, including pools that do not exist yet
  sql stable

function pgflow.own_pool_(root uuid) returns text, owner pgflow_owner
  -- Name of the pool that a run has of its own
  sql immutable

function pgflow.own_roles_(gate text, by text, claimed text[]) returns text[], owner pgflow_owner
  -- Roles as which the session may act at a gate: those claimed, or all that are asked there; PF021 if a name or role is not its own
  plpgsql stable

function pgflow.own_runs_(ids bigint[]) returns bigint[], owner pgflow_owner
  -- The runs that a caller names, null in place of each that is not of a tenant of the session
  plpgsql stable

function pgflow.own_stem_(root uuid, generation integer) returns text, owner pgflow_owner
  -- Beginning of the idempotency keys of a generation
  sql immutable

function pgflow.own_tenant_(given text) returns text, owner pgflow_owner
  -- The tenant that a caller names, or PF021 if it is not one of the session; empty = the only one of the session
  plpgsql stable

function pgflow.own_tenants() returns text[], owner pgflow_owner
  -- Tenants of this session: those that its role was granted, or the one of them that the setting pgflow.tenant names; null = all
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.page_failed(run_id bigint, call integer, kind text, leased_until timestamp with time zone, error text) returns void, owner pgflow_owner
  -- Records a failed page, which is given out again after a delay that grows from 5 seconds to 10 minutes. No effect once the page was given out again
  sql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.page_sent(run_id bigint, call integer, kind text, leased_until timestamp with time zone, again_seconds double precision DEFAULT NULL::double precision) returns void, owner pgflow_owner
  -- Records a sent page; it is sent again after this number of seconds if the need persists, null = never. No effect once the page was given out again
  sql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.park_all_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Lease -> parked, for runs of a batch, with their reasons to wake; answers the chains for which a message that crossed it should be looked for at once
  plpgsql volatile
  set enable_seqscan=off

function pgflow.park_gates_(questions jsonb, positions integer[], t timestamp with time zone) returns void, owner pgflow_owner
  -- Has runs that park wait for their gates, and for the end of the time of these
  plpgsql volatile
  set enable_seqscan=off

function pgflow.parted_(run_id bigint, cut integer) returns TABLE(seq integer, what text, name text, taken_back_at integer), owner pgflow_owner
  -- Effects before a cut, and children started before it, whose compensation began after it: no run may go on from there as if they were done
  sql stable

function pgflow.pass_time_(queue text) returns boolean, owner pgflow_owner
  -- Lets the next timer of a test be due; false if there is none
  plpgsql volatile

function pgflow.path_in_day_(round bigint, first_round bigint, last_round bigint) returns jsonb, owner pgflow_owner
  -- The way from a round's root to the root of its day, or of the rounds that an anchor has of an open one
  sql stable

function pgflow.path_in_round_(round bigint, run_id bigint) returns jsonb, owner pgflow_owner
  -- The way from a run's seal to the root of its round
  sql stable

function pgflow.path_of_(me bigint) returns json, owner pgflow_owner
  -- Keys of the runs above a run and its own, the root first
  sql stable

function pgflow.pause_(run bigint, chain bigint, token bigint, seq integer, t timestamp with time zone) returns void, owner pgflow_owner
  -- Takes the requests to pause, records who asked and why, and holds the run
  plpgsql volatile

function pgflow.pause_queue(queue text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Stops claims from a queue; what runs goes on; who says so, and why, is kept with it
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.pause_relay(name text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Pauses a relay: it takes no events until resume_relay. PF028 if the relay does not exist
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.pause_run(key text, why text DEFAULT 'paused'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Asks for a run to be held: bodies that run finish, nothing new starts until resume_run. Takes effect once a worker looks, within its poll, or you call wake() after your commit; until then pgflow.orders has it, and pgflow.runs the run as it was
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.pause_schedule(name text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns boolean, owner pgflow_owner
  -- Has a schedule start nothing until it is resumed; false if it is paused. Slots that pass meanwhile start no run. PF027 if there is none
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.period_now(per text, tz text) returns timestamp with time zone, owner pgflow_owner
  -- Of a pool, for the view budgets: beginning of the calendar period that it is in
  sql volatile security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_worker

function pgflow.period_of_(per text, tz text, t timestamp with time zone) returns timestamp with time zone, owner pgflow_owner
  -- Beginning of the calendar period that a time is in
  sql stable

function pgflow.periods_of_(names text[], t timestamp with time zone) returns timestamp with time zone[], owner pgflow_owner
  -- The period that each of these pools is in, whether there is such a pool or not
  sql stable
  set enable_seqscan=off

function pgflow.pick_heads_(lanes integer[], max integer, suspects boolean, after bigint[]) returns tid[], owner pgflow_owner
  -- First rows of these lanes, or the first behind {priority, run}, in the order of claiming; of one lane, locked. Or their suspects, those with the fewest deaths first
  plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off

function pgflow.picture_of_(node pgflow.flow_node) returns text, owner pgflow_owner
  -- A node in the language of Mermaid
  sql immutable

function pgflow.places_() returns TABLE(run_id bigint, place text, last_seq integer, lane_id integer), owner pgflow_owner
  -- The place of every open run
  sql stable

function pgflow.play_test_(workflow text, input json, signals jsonb, children jsonb, queue text) returns jsonb, owner pgflow_owner
  -- Plays a run of a test, and says how it went
  plpgsql volatile

function pgflow.poll(max integer DEFAULT 1000) returns TABLE(lanes integer[], mail bigint[], ended bigint[], busy integer, next_due_seconds double precision, newest_lane integer), owner pgflow_owner
  -- The sweep of every worker: events that runs wait for, expired runs, effects without a beat, obligations that are due, locks, nudges, due timers; also says in how many seconds the next of these is due, and which lane is the newest, for a worker to notice one that it serves
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_worker

function pgflow.pool_for_claim_(name text) returns jsonb, owner pgflow_owner
  -- Facts for a worker on the pool of a run
  sql stable
  set enable_seqscan=off

function pgflow.post_(chain bigint, kind "char", name text, payload json, sent_by text) returns bigint, owner pgflow_owner
  -- Puts a message into the mailbox of a chain; answers its number
  plpgsql volatile

function pgflow.post_events_(addresses tid[], chains bigint[], names text[], ids bigint[]) returns void, owner pgflow_owner
  -- Puts events into the mailboxes of runs, which do not wait for them any more then
  sql volatile
  set enable_seqscan=off

function pgflow.post_settlement_(debt pgflow.owed, verdict text, value json, why text, sent_by text) returns bigint, owner pgflow_owner
  -- Posts the outcome of an effect to its run, or records it if the run has ended; returns the chain
  plpgsql volatile

function pgflow.post_signal(key text, name text, payload json DEFAULT 'null'::json, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, idempotency_key text DEFAULT NULL::text, OUT chain_id bigint, OUT message_id bigint, OUT ended_as text, OUT is_new boolean) returns record, owner pgflow_owner
  -- Sends a signal to a run in the caller's transaction; answers the chain, for wake(), the number of the message, and the status of a run that has ended: pgflow.undelivered_messages keeps its message. The same idempotency_key to the same run is one message, for as long as the history of the run: sent again, it answers that one, and is_new = false; PF002 if it was another. PF003 if the workflow declares the signal and takes no such payload. PF001 if no run has the key
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.post_update(name text, key text, update text, args json DEFAULT '{}'::json, expect bigint DEFAULT NULL::bigint, sent_by text DEFAULT NULL::text, idempotency_key text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Asks for an update of an entity in the caller's transaction; a worker makes it after the commit. Answers its number, under which update_verdict says what became of it. However often it is sent under one idempotency key, it is made once, and each number has that verdict
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.post_verdict_(asked pgflow.gate, n integer, verdict text, t timestamp with time zone) returns void, owner pgflow_owner
  -- Posts the verdict of a gate, closed by the answer of this number, to its run
  sql volatile

function pgflow.proof(key text, tenant text DEFAULT ''::text, anchor jsonb DEFAULT NULL::jsonb) returns jsonb, owner pgflow_owner
  -- All that is needed to check a run against an anchor, offline: the texts that are hashed, which hold no values, and the ways to the roots that the anchor has; null = one that is taken now. PF003 if it is none, PF006 if the run is not sealed yet
  plpgsql stable security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.proof_of_(secret text) returns bytea, owner pgflow_owner
  -- Hash of the secret by which plain code shows that it is the holder of a lock; without one, of its session
  sql stable

function pgflow.publish(topic text, payload json DEFAULT 'null'::json, key text DEFAULT NULL::text, run_id bigint DEFAULT NULL::bigint) returns bigint, owner pgflow_owner
  -- Publishes an event in the caller's transaction; answers its number. Relays bring it on after the commit, events of one key in their order. PF003 for a topic, key or payload that none can have
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.purge_queue(queue text, upto bigint DEFAULT NULL::bigint, max integer DEFAULT 1000, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text, OUT runs bigint, OUT newest bigint, OUT chains bigint[]) returns record, owner pgflow_owner
  -- Cancels runs of a queue that have not begun. Without upto it only counts them and answers the newest; with that number it cancels up to max of those, and answers how many. Call it again until there are none, each time in a transaction of its own, and wake their chains
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.put_back_(chain bigint, origin bigint, cut integer, to_chain bigint) returns void, owner pgflow_owner
  -- Fills a mailbox: what the dropped part of a journal had taken, in order, then what waits or was put aside; copies of it, for another chain
  plpgsql volatile

function pgflow.put_code_(codes jsonb) returns void, owner pgflow_owner
  -- Makes rows of code known, as register_code takes them
  plpgsql volatile

function pgflow.put_documents(documents json) returns integer, owner pgflow_owner
  -- Writes documents, given as an array of {collection, path, value, ttl_ms, once}: all of them or none. One with once = true leaves what is there. Answers how many it has written
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.put_mail_aside_(chains bigint[], t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Moves what is left in the mailboxes of finished chains to `undelivered`, except what another wake is moving; records the verdicts on obligations among it, and refuses updates that other runs have asked for; answers the chains of these, to be woken
  sql volatile

function pgflow.put_schedule_(name text, workflow text, spec jsonb, queue text, input json, slot_parameter text, overlap text, catch_up text, max_catch_up integer, jitter_seconds double precision, priority integer, timeout_seconds double precision, labels jsonb, run_version text, t timestamp with time zone) returns boolean, owner pgflow_owner
  -- Makes a schedule or changes it; false if it is like that already
  plpgsql volatile

function pgflow.put_signals_back_(returned jsonb) returns void, owner pgflow_owner
  -- Puts messages back into their mailboxes that were recorded and that the code could not take
  sql volatile
  set enable_seqscan=off

function pgflow.query(key text, name text, tenant text DEFAULT ''::text) returns json, owner pgflow_owner
  -- Value that a run last published under a name by set_state(); the run is not woken. PF003 if there is none
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.question_rows_(list jsonb) returns TABLE(pos integer, question jsonb, continue text, children jsonb, signals jsonb, timers jsonb, retries jsonb, child_calls jsonb, unwanted jsonb, cancelled boolean, idle boolean, park boolean, stuck jsonb, hold jsonb, refused jsonb, cancel jsonb, saga jsonb, of_children jsonb, owes boolean, gated boolean, awaited boolean, admits jsonb, effects jsonb, open_effects jsonb, gates jsonb, new_gates jsonb, locks jsonb, holds jsonb, unlocks jsonb, updates jsonb, events jsonb, run bigint, token bigint, chain bigint, seq integer), owner pgflow_owner
  -- Objects of the protocol as columns: questions of runs that commit: for a decision of the database, or a change of place
  sql stable

function pgflow.quorum_of_(asked pgflow.gate, t timestamp with time zone) returns integer, owner pgflow_owner
  -- Number of people who must approve at a time: after an escalation, one
  sql immutable

function pgflow.reach_(anchor jsonb, OUT closed_round bigint, OUT last_round bigint) returns record, owner pgflow_owner
  -- The last round of the days that an anchor has, and the last one that it covers. PF003 if it is none
  plpgsql immutable

function pgflow.read_chunk(digest text, n integer DEFAULT 0, tenant text DEFAULT ''::text) returns bytea, owner pgflow_owner
  -- A chunk of a blob of a tenant; null behind the last. PF003 if there is no such blob
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.read_clock() returns timestamp with time zone, owner pgflow_owner
  -- Time by the clock that decides what is due, for views
  sql volatile security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.read_drafts(key text, stream text, tenant text DEFAULT ''::text) returns TABLE(draft text, value text), owner pgflow_owner
  -- Values that running steps of a run have emitted to a stream, and that do not count yet
  sql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.read_entity(name text, key text, OUT version bigint, OUT state text, OUT updated_us bigint) returns SETOF record, owner pgflow_owner
  -- State of an entity without a lock; no row if it was never opened
  sql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_worker

function pgflow.read_rate_(said text, OUT many integer, OUT seconds double precision) returns record, owner pgflow_owner
  -- Number and seconds of a rate such as 100/1m; PF003 if it is none
  plpgsql immutable

function pgflow.read_rows_(list jsonb) returns TABLE(name text, seq integer, max_age interval), owner pgflow_owner
  -- Rows of the protocol as columns: reads on which an effect rests
  sql stable

function pgflow.read_schedule_spec(name text) returns jsonb, owner pgflow_owner
  -- Spec of a schedule, by which its slots are computed. PF027 if there is none
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.read_stream(key text, stream text, after_run bigint DEFAULT 0, after_seq integer DEFAULT 0, skip integer DEFAULT 0, max integer DEFAULT 1000, tenant text DEFAULT ''::text) returns TABLE(run_id bigint, seq integer, value text, draft text), owner pgflow_owner
  -- Values that a run emitted to a stream, in order, over its generations, without those that a rewind has dropped; null = the stream was closed there. `draft` names the value as read_drafts() did while its step ran
  sql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.read_unit(run_id bigint, seq integer) returns TABLE(token bigint, call integer, kind "char", payload text), owner pgflow_owner
  -- The unit at a seq: how a worker learns what became of a COMMIT whose answer was lost
  sql stable security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.reap_sessions(is_own boolean DEFAULT false) returns integer, owner pgflow_owner
  -- Gives runs away of sessions that worked and are gone, which a lock tells at once; answers how many
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.reap_worker(worker_id integer, beat bigint) returns TABLE(reclaimed integer, stuck bigint[], lanes integer[]), owner pgflow_owner
  -- Declares a worker dead if its beat is still the one observed, and gives its runs away; those it died on too often are stuck
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.reason_rows_(list jsonb) returns TABLE(state text, reason text, code_hash text, detail jsonb, held_by text), owner pgflow_owner
  -- Rows of the protocol as columns: reasons why runs are held
  sql stable

function pgflow.record_flow(program jsonb, function text) returns integer, owner pgflow_owner
  -- Notes a new version of a workflow in SQL: what create_workflow has signed as the owner of its function
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.record_note_(f pgflow.flow_frame, token bigint, node pgflow.flow_node, value jsonb) returns pgflow.flow_frame, owner pgflow_owner
  -- Records what a run says of itself: its state, or a value of a stream
  plpgsql volatile

function pgflow.record_step_(f pgflow.flow_frame, token bigint, kind "char", name text, payload jsonb) returns pgflow.flow_frame, owner pgflow_owner
  -- Records the outcome of a node that ran SQL
  plpgsql volatile

function pgflow.record_unit_(f pgflow.flow_frame, token bigint, kind "char", call integer, name text, payload jsonb, starts jsonb) returns pgflow.flow_frame, owner pgflow_owner
  -- Appends a unit of a run that advance holds, and folds it into the frame
  plpgsql volatile

function pgflow.redact(key text, seq integer, why text, by text DEFAULT NULL::text, what text DEFAULT 'unit'::text, tenant text DEFAULT ''::text, generation integer DEFAULT NULL::integer) returns text, owner pgflow_owner
  -- Replaces a value of a run that has ended by its hash: the payload of a unit, in all runs that began with it, or the input or result of the run; a unit says who and why. Answers the hash. What is removed stays in dead rows until a vacuum, and in backups. PF001 if there is no such run, PF003 if there is no such value, PF006 while a run is open that may need it
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.redact_copies_(runs bigint[], body json, asked json) returns void, owner pgflow_owner
  -- Takes a value out of what later generations have of it beside the journal, for reuse and for taking back
  sql volatile

function pgflow.redact_update(key text, update_id text, why text, by text DEFAULT NULL::text, tenant text DEFAULT ''::text, OUT removed integer) returns integer, owner pgflow_owner
  -- Replaces by their hashes all values of an update of a run that has ended: its arguments, and its value or error, also of one that was rejected or never taken. Answers how many. PF001 if there is none of this id, PF006 while the run is open
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.redacted_(body json, kind "char") returns json, owner pgflow_owner
  -- Stand-in for a value that was redacted: an envelope that no codec can open, with the hash of its text
  plpgsql stable

function pgflow.redeliver_events(name text, event bigint DEFAULT NULL::bigint, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Retries the dead events of a relay, or one of them; returns their number. PF028 if the relay does not exist
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.refill_schedules(slots jsonb) returns integer, owner pgflow_owner
  -- Takes further slots of schedules, [{name, version, after, slots, is_over, error}, ...], where neither the expression nor the last slot has changed since they were asked for; answers of how many schedules
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.refills_(wanted jsonb) returns jsonb, owner pgflow_owner
  -- The slots that keep_schedules asks for, as refill_schedules takes them; of each schedule, or what is wrong with it
  plpgsql stable

function pgflow.refuse_coded_(workflow text) returns void, owner pgflow_owner
  -- Refuses (PF006) the name of a workflow that a living worker has as code
  plpgsql stable

function pgflow.refuse_flow(program jsonb, node integer, problem text) returns void, owner pgflow_owner
  -- Refuses (PF003) a text that the server could not compile, with the place that its error is about
  plpgsql immutable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.refuse_gate_(gate text) returns void, owner pgflow_owner
  -- Raises PF022 with the author, time and verdict of a closed gate; PF001 if it was never closed
  plpgsql stable

function pgflow.refuse_held_(chain bigint) returns void, owner pgflow_owner
  -- Refuses (PF006) to take a value out of a run under a legal hold
  plpgsql stable

function pgflow.refuse_other_(me bigint, workflow text, input json) returns void, owner pgflow_owner
  -- Refuses (PF002) to change a run for a start of another workflow
  plpgsql volatile

function pgflow.refuse_rewrite_() returns trigger, owner pgflow_owner
  -- Refuses (PF006) to change or remove units, save in functions that record that they do
  plpgsql volatile

function pgflow.refuse_rules_(rules jsonb) returns void, owner pgflow_owner
  -- Refuses (PF003) rules that no queue can have
  plpgsql immutable

function pgflow.refuse_start_(workflow text, definer oid DEFAULT NULL::oid) returns void, owner pgflow_owner
  -- Refuses (PF021) a start of a workflow that the caller, or the definer of its parent, was not granted
  plpgsql stable

function pgflow.refuse_test_() returns trigger, owner pgflow_owner
  -- Refuses (PF006) the COMMIT of a test
  plpgsql volatile

function pgflow.refuse_unknown_(workflow text, version text, queue text) returns void, owner pgflow_owner
  -- Refuses (PF003) a start of a workflow or version that no worker has ever had
  plpgsql stable

function pgflow.refuse_unowed_(obligation_key text) returns void, owner pgflow_owner
  -- Says (PF001) that no open obligation has a key
  plpgsql volatile

function pgflow.refuse_update(mail_id bigint, error json) returns void, owner pgflow_owner
  -- Records that an update by the mailbox was refused: it raised, or the entity had another version
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.refuse_updates_(chains bigint[], t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Refuses what other runs have asked of chains that ended without an answer; answers the chains of these, to be woken
  plpgsql volatile
  set enable_seqscan=off

function pgflow.refused_rows_(list jsonb) returns TABLE(name text, error text, code_hash text), owner pgflow_owner
  -- Rows of the protocol as columns: signals that the code could not take
  sql stable

function pgflow.register_code(worker_id integer, codes jsonb) returns void, owner pgflow_owner
  -- A worker says what code it has: [[workflow, version, hash, whether it is pinned, name now if that one is old, {patch: whether it is deprecated}, {signal: shape of its payloads}, text of {parameter: default}], ...]
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.register_worker(host text, pid integer, queues text[], concurrency integer, version text, stamp text DEFAULT NULL::text) returns integer, owner pgflow_owner
  -- A worker process announces itself, and the stamp of the schema that its code is made for; answers its number
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.relabel_(me bigint, after_seq integer) returns void, owner pgflow_owner
  -- Gives a run the labels that its units behind a seq have set
  plpgsql volatile

function pgflow.relabelled_(labels jsonb, run_id bigint, after_seq integer) returns jsonb, owner pgflow_owner
  -- Labels with what the units of a run behind a seq have changed; null = nothing
  sql stable
  set enable_seqscan=off

function pgflow.relay_news(names text[], token bigint, OUT news text[], OUT wait_seconds double precision) returns record, owner pgflow_owner
  -- Of these relays those that have something to deliver, and when the next of the others has; locks nothing
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.release_history(key text, tenant text DEFAULT ''::text) returns boolean, owner pgflow_owner
  -- Releases the legal hold of a run; true if there was one. PF001 if no run has the key
  sql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.release_lock(key text, fence bigint, secret text DEFAULT NULL::text) returns boolean, owner pgflow_owner
  -- Gives a lock of plain code back; false if it was lost before, or was not taken with this secret. The next one in the queue is let in by sweep_locks(), or by the next poll of a worker
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.release_outdated(worker_id integer) returns integer, owner pgflow_owner
  -- A worker lets runs be tried again that older code could not replay, while both are about; answers how many
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.release_relay(name text, token bigint) returns void, owner pgflow_owner
  -- Gives the lease of a relay back
  sql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.release_runs(run_ids bigint[], tokens bigint[]) returns bigint[], owner pgflow_owner
  -- Hands runs back for others to claim, without counting it against them; answers those that were still held
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_worker

function pgflow.release_strays(worker_id integer, known bigint[], claimed_before timestamp with time zone, OUT strays integer, OUT seen_at timestamp with time zone) returns record, owner pgflow_owner
  -- Hands back leases that a worker does not know it has: the answer to its claim was lost. Only those from before a time that it names, since when each of its claims was answered; seen_at is such a time for its next look
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.release_stuck(workflows text[], code_hashes text[]) returns integer, owner pgflow_owner
  -- A worker with other code than the one that could not replay a run lets it be tried again; answers how many
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.removable_(roots bigint[], ended_before timestamp with time zone[], t timestamp with time zone, keys_count boolean DEFAULT true) returns bigint[], owner pgflow_owner
  -- Runs of the families of these roots that all ended before the time of the root, that owe nothing, that no legal hold keeps, and whose keys need not be kept, if that counts
  plpgsql stable
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.remove_leftovers_(ended_before timestamp with time zone) returns integer, owner pgflow_owner
  -- Removes mail and code of no run, and partitions of the journal without runs; answers the number of these
  plpgsql volatile

function pgflow.remove_runs_(gone bigint[], ended_before timestamp with time zone, why text, t timestamp with time zone) returns void, owner pgflow_owner
  -- Removes runs that have ended, with all that is known of them, and records how many; the caller holds the latch
  plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.remove_schedule(name text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns boolean, owner pgflow_owner
  -- Removes a schedule; its runs stay. Answers true if the code of a living worker declares it, so that the next worker makes it again. PF027 if there is none
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.renew_lock(key text, fence bigint, ttl interval, secret text DEFAULT NULL::text) returns boolean, owner pgflow_owner
  -- Holds a lock of plain code for longer, from now on; false if it is lost, or was not taken with this secret
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.reopen_gates_(returned jsonb) returns void, owner pgflow_owner
  -- Opens the gates again whose answers the code could not take
  plpgsql volatile
  set enable_seqscan=off

function pgflow.replace_message(key text, message bigint, payload json, why text DEFAULT 'replaced'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, OUT chain_id bigint, OUT lane_id integer, OUT message_id bigint) returns record, owner pgflow_owner
  -- Gives a message in the mailbox of a run another payload, in its place; a run that was stuck for want of it goes on. PF001 if there is no such message, PF003 if the workflow declares the signal and takes no such payload, PF006 while the run is running
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.replace_wraps(name text, first_page bigint, changes jsonb, pages integer DEFAULT 128) returns integer, owner pgflow_owner
  -- Puts new wraps in the place of those named in some pages of a table, in rows that no other session has locked; answers the number of rows. PF003 if they are no wraps
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.replay_relay(name text, from_event bigint, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Has a relay go on from this event, backwards or forwards: events that it has delivered come again, under their numbers. Answers how many there are. PF028 if there is no such relay
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.reply_rows_(list jsonb) returns TABLE(run_id bigint, chain_id bigint, update_id text, message bigint, seq integer, status text, error json), owner pgflow_owner
  -- Rows of the protocol as columns: updates that are taken out of mailboxes, or answered, or both
  sql stable

function pgflow.report_loss(worker_id integer, host text, pid integer, old_timeline integer, new_timeline integer, acknowledged bigint, kept bigint, age_seconds double precision, run_count integer, runs jsonb) returns bigint, owner pgflow_owner
  -- A worker writes down that what was acknowledged to it is lost; answers the number of the loss
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.requeue_message(key text, message bigint, to_key text DEFAULT NULL::text, why text DEFAULT 'requeued'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, OUT chain_id bigint, OUT lane_id integer, OUT message_id bigint) returns record, owner pgflow_owner
  -- Sends a message again, behind the others of its name: to its run, or to another; a run that was stuck for want of it goes on. Answers the chain that has it now, for wake(). PF001 if there is no such message, PF006 while its run is running, or if the run that is to have it has ended
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.require_flow_(workflow text) returns pgflow.flow, owner pgflow_owner
  -- The current version of a workflow in SQL; refuses (PF001) others
  plpgsql stable

function pgflow.require_known(queue text, required boolean DEFAULT true) returns void, owner pgflow_owner
  -- Has a queue refuse (PF003) starts of workflows, and of versions of them, that no worker has ever had; false takes them again. Children are not refused
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.require_owner_(workflow text, privilege text) returns name, owner pgflow_owner
  -- Refuses (PF021) a caller who does not own a workflow in SQL, and writes down what holds by default; answers the caller
  plpgsql volatile

function pgflow.restart_run(key text, input json DEFAULT NULL::json, effects text DEFAULT NULL::text, children text DEFAULT 'refuse'::text, attempts integer DEFAULT NULL::integer, timeout_seconds double precision DEFAULT NULL::double precision, why text DEFAULT 'restarted'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, OUT run_id bigint, OUT generation integer, OUT lane_id integer) returns record, owner pgflow_owner
  -- Begins a run anew as its next generation, with the same input or another; PF006 while it runs, PF020 if it has acted
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.result(key text, tenant text DEFAULT ''::text, OUT status text, OUT output json, OUT error json, OUT reason text) returns record, owner pgflow_owner
  -- Status of the run that a key names and, once it has ended, its output or error; PF001 if there is none
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.results(chains bigint[]) returns TABLE(chain_id bigint, status text, reason text, output text, error text, key text), owner pgflow_owner
  -- Those of these chains that have ended, are stuck, or are gone with their history, with output or error: what a waiting client asks
  sql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.resume_queue(queue text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Lets claims from a paused queue go on; who says so, and why, is kept with it
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.resume_relay(name text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Resumes a relay that is paused, or whose circuit is open. PF028 if the relay does not exist
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.resume_run(key text, why text DEFAULT 'resumed'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Lets a paused or stuck run go on, once a worker looks, within its poll, or you call wake() after your commit
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.resume_schedule(name text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns boolean, owner pgflow_owner
  -- Has a paused schedule go on with the slots to come; false if it is not paused. PF027 if there is none
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.retire_runs(max integer DEFAULT 1000, after bigint DEFAULT 0) returns TABLE(runs integer, last_root bigint), owner pgflow_owner
  -- Removes runs whose time is over by the rules of retention, of so many families from a root on; answers how many, and the last root that it looked at, null once there are none. Workers call it
  plpgsql volatile security definer
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.retry_called_(run_id bigint, why text, sent_by text) returns void, owner pgflow_owner
  -- Retries the runs of files that a run of a file has called and that failed, but for those that cannot be
  plpgsql volatile

function pgflow.retry_run(key text, why text DEFAULT 'retried'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, from_step text DEFAULT NULL::text, attempts integer DEFAULT NULL::integer, effects text DEFAULT NULL::text, children text DEFAULT 'refuse'::text) returns bigint, owner pgflow_owner
  -- Lets a stuck run go on with a fresh budget of attempts; rewinds a failed one, or any that does not run, to just before a step, whose key stays the same, and of itself to before what was taken back since. Of a run of a file, all that failed is done again, also in the runs that it called. PF006 if there is nothing to retry
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.return_reservations_(runs bigint[]) returns void, owner pgflow_owner
  -- Returns what runs have reserved that go no further: they were ended by force, or go on as other generations
  plpgsql volatile
  set enable_seqscan=off

function pgflow.returned_rows_(list jsonb) returns TABLE(run_id bigint, chain_id bigint, call integer, seq integer, error text), owner pgflow_owner
  -- Rows of the protocol as columns: messages and answers of gates that were taken and go back, with the reason
  sql stable

function pgflow.revoke_pool(name text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text, restore boolean DEFAULT false) returns void, owner pgflow_owner
  -- Has a pool, and every pool that draws on it, admit nothing from now on; what is under way goes on. With restore it admits again. PF026 if there is no such pool
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.revoke_tenant(role text, tenant text) returns boolean, owner pgflow_owner
  -- Takes back a grant of grant_tenant(); true if there was one. Calls that are under way end as they began
  sql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.revoke_workflow(workflow text, role text, privilege text) returns void, owner pgflow_owner
  -- Takes a right to a workflow in SQL back. Revoke start from public to keep a workflow to the roles that were granted it. Its owner always has all rights. PF021 if you do not own it
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.rewind_run(key text, to_seq integer DEFAULT NULL::integer, from_step text DEFAULT NULL::text, edit json DEFAULT NULL::json, effects text DEFAULT NULL::text, children text DEFAULT 'refuse'::text, attempts integer DEFAULT NULL::integer, timeout_seconds double precision DEFAULT NULL::double precision, why text DEFAULT 'rewound'::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, OUT run_id bigint, OUT generation integer, OUT lane_id integer, OUT seq integer) returns record, owner pgflow_owner
  -- Takes a run back to a unit of its journal, or before a step, and lets it go on from there as its next generation; PF006 while it runs, PF020 if what is dropped has acted
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.rewrapped_(body text, changes jsonb) returns text, owner pgflow_owner
  -- Text of a value with other wraps in place of those named
  plpgsql immutable

function pgflow.role_number_(role text) returns oid, owner pgflow_owner
  -- Number of a role, 0 = public; PF001 if there is none
  plpgsql stable

function pgflow.round_hash_(r pgflow.seal_round) returns bytea, owner pgflow_owner
  -- Hash of a round: behind 04, its number, its time and its root
  sql stable

function pgflow.run_ids_(list jsonb) returns bigint[], owner pgflow_owner
  -- Numbers of runs in a list of a batch
  sql immutable

function pgflow.run_of_(item jsonb) returns jsonb, owner pgflow_owner
  -- Run that a row of a batch is about, whatever its kind: each begins with it
  sql immutable

function pgflow.run_rows_(list jsonb) returns TABLE(run_id bigint, token bigint, expected_seq integer), owner pgflow_owner
  -- Rows of the protocol as columns: runs of a batch, each fenced by the token of its lease
  sql stable

function pgflow.run_state(key text, tenant text DEFAULT ''::text) returns json, owner pgflow_owner
  -- Values that the run last set with set_state()
  sql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.run_status(key text, tenant text DEFAULT ''::text) returns text, owner pgflow_owner
  -- queued, running, waiting, paused, stuck, completed, failed or cancelled; PF001 if no run has the key
  sql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.run_text_(r pgflow.run) returns text, owner pgflow_owner
  -- Start of a run as one text, with the hashes of its values: its chain begins with it
  sql stable

function pgflow.run_timed(step jsonb) returns jsonb, owner pgflow_owner
  -- Runs a step that has a timeout, of which statement_timeout was set to the seconds that work_until() has answered
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.saga_rows_(list jsonb) returns TABLE(n integer, entry jsonb, name text, key text, code text, request json, result json, ref text, is_own boolean), owner pgflow_owner
  -- Rows of the protocol as columns: effects of earlier generations and of children, to be taken back if the run fails
  sql stable

function pgflow.said_of_update(payload json, OUT value json, OUT error json) returns record, owner pgflow_owner
  -- Of the unit of an answer, for the view updates: its value or error
  sql immutable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.same_input_(one json, other json, defaults json) returns boolean, owner pgflow_owner
  -- True if two inputs are the same once the defaults stand for what they leave out
  sql immutable

function pgflow.sample_rates_(this_minute timestamp with time zone, t timestamp with time zone) returns void, owner pgflow_owner
  -- Counts what was started since the last look and what is queued now, and removes rows of more than a day ago
  plpgsql volatile

function pgflow.save_schedule_(s pgflow.schedule, t timestamp with time zone) returns void, owner pgflow_owner
  -- Writes a schedule that was looked at, with the time of the next look
  plpgsql volatile

function pgflow.say_at_gate_(gate text, verdict text, payload_hash text, value json, reason text, said_by text, acting_as text[], hand_to text) returns bigint, owner pgflow_owner
  -- Adds an answer to a gate, and notifies its run if that closes it; returns the chain
  plpgsql volatile

function pgflow.say_of_obligation_(obligation_key text, said json, sent_by text) returns bigint, owner pgflow_owner
  -- Posts a word on an obligation to its run, or records it if the run has ended; returns the chain, null if no open obligation has the key
  plpgsql volatile

function pgflow.seal_runs_(ids bigint[], this_round bigint, t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Seals what is new of these runs, and keeps those pending that may still grow; answers which have a new seal
  plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.seal_units(max_runs integer DEFAULT 500, at_once boolean DEFAULT false) returns TABLE(sealed integer, has_more boolean, wait_seconds double precision), owner pgflow_owner
  -- One round of the sealer: seals what is new of at most so many new runs and so many that were open; answers how many have a new seal, whether there is more to do at once, and when the next round is due (null: sealing is off). at_once: without waiting for that time, and for other sealers
  plpgsql volatile security definer
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.seal_until_(ids bigint[], this_round bigint, t timestamp with time zone, until timestamp with time zone, OUT looked integer, OUT sealed bigint[]) returns record, owner pgflow_owner
  -- Seals what is new of these runs, a few at a time until a time is over, and the first few in any case; answers how many it has looked at, and which have a new seal
  plpgsql volatile

function pgflow.segment_rows_(list jsonb) returns TABLE(n integer, upto integer, stem text), owner pgflow_owner
  -- Rows of the protocol as columns: parts of a journal, each with the beginning of its idempotency keys
  sql stable

function pgflow.segments_(known jsonb, own text, cut integer) returns jsonb, owner pgflow_owner
  -- The segments of an origin, its own stem among them, as far as a cut
  sql immutable

function pgflow.seize_(me bigint, shown text, verb text, OUT lane_id integer, OUT priority smallint, OUT was json) returns record, owner pgflow_owner
  -- Locks a run where it is, unless a worker holds it (PF006); says how it was
  plpgsql volatile

function pgflow.seize_message_(chain bigint, message bigint, shown text, OUT me bigint, OUT place json, OUT name text, OUT waits boolean) returns record, owner pgflow_owner
  -- Locks the place of a run, unless a worker holds it (PF006), and a message that waits for it or was put aside (else PF001)
  plpgsql volatile

function pgflow.send_results_(origin bigint, cut integer, heir bigint, chain bigint, t timestamp with time zone) returns void, owner pgflow_owner
  -- Posts the results of children that the copied part waits for; refuses (PF006) if one of them is still open
  plpgsql volatile

function pgflow.send_signal(key text, name text, payload json DEFAULT 'null'::json, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, idempotency_key text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Sends a signal to a run in the caller's transaction; answers the chain, for wake(). post_signal says what became of it too, and what an idempotency_key is. PF001 if no run has the key
  sql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.send_update(key text, name text, payload json DEFAULT '{}'::json, INOUT update_id text DEFAULT NULL::text, tenant text DEFAULT ''::text, sent_by text DEFAULT NULL::text, reply_to text DEFAULT NULL::text, reply_as text DEFAULT NULL::text, OUT chain_id bigint, OUT is_new boolean) returns record, owner pgflow_owner
  -- Asks a run for an update in the caller's transaction, its arguments by their names; answers its id, under which update_reply() says what became of it, and the chain, for wake(). The same id to the same run is one update, for as long as the history of the run; PF002 if it was another. reply_to is the key of a run that gets the answer, an object with status, value and error as of update_reply(), as a signal. reply_as is the name of this signal; the id if not given. PF001 if no run has the key
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.sender_(name text) returns text, owner pgflow_owner
  -- Name of the sender, with the role of the session in brackets; without a name, that role alone
  sql stable

function pgflow.serve_flows(worker_id integer, queues text[]) returns integer[], owner pgflow_owner
  -- A session that works says that it has all workflows in SQL, and lives; answers the lanes that it serves
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.serve_lanes(queues text[], workflows text[], versions text[] DEFAULT '{}'::text[]) returns TABLE(lane_id integer, queue text, workflow text, version text), owner pgflow_owner
  -- The lanes that a worker of these queues and workflows serves: those of runs that any version may work on, and of runs pinned to its own
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.serves_all_as_(role name) returns text, owner pgflow_owner
  -- Name of the role of pgflow that lets a role act for every tenant, or superuser; null = none
  sql stable

function pgflow.set_policy(rules jsonb, why text, set_by text DEFAULT NULL::text) returns integer, owner pgflow_owner
  -- Puts a new version of the policy in force; rules = [{needs: gate or nothing, risk, name, amount: jsonpath, above: number, predicate: jsonpath, author: model, role: of the database, and of its gate approvers: [name or role, ...], quorum, timeout: seconds or interval, on_timeout, escalate: [name, ...]}, ...], the first that fits counts; answers its number. PF003 names what a rule cannot say
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.set_pool(name text, limits jsonb DEFAULT '{}'::jsonb, parent text DEFAULT NULL::text, per text DEFAULT NULL::text, tz text DEFAULT 'UTC'::text, soft numeric DEFAULT 0.8, hard boolean DEFAULT false, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Makes a pool, or sets its limits anew: limits by unit, such as {"usd": 50}; parent = the pool that it draws on; per = hour, day, week, month, quarter or year after which it is full again, in a time zone; soft = part of a limit from which on runs are told; hard = no step at all of a run under it is licensed once it is used up. PF026 if there is no such parent, PF006 if it has another
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.set_queue(queue text, rules jsonb, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns jsonb, owner pgflow_owner
  -- Sets rules of a queue, of those that it names, and answers all: concurrency and per_worker, most runs held at once by all workers and by one; key, an expression over the input, labels, tenant and workflow of a run; per_key, most runs of one key; fifo, each once those before it of its key have ended; rate and key_rate, such as 100/1m, most runs that begin, with burst and key_burst as a bucket; ageing_seconds of waiting that are worth one step of priority; weights of keys; expires_seconds after which a run that has not begun is cancelled; closed, true to take no new runs; max_deaths, after so many workers died over a run it is stuck (5 by default). null removes a rule. PF003: a rule that no queue can have
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.set_retention(rule text, keep_seconds double precision, workflow text DEFAULT NULL::text, status text DEFAULT NULL::text, labels jsonb DEFAULT NULL::jsonb, tenant text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Sets a rule by its name: workers remove runs that match all of its conditions so many seconds after they have ended. The rule with the most conditions decides, and of several such the one that keeps longer. PF003 if it is none
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.set_schedule(name text, workflow text, spec jsonb, queue text DEFAULT 'default'::text, input json DEFAULT '{}'::json, slot_parameter text DEFAULT NULL::text, overlap text DEFAULT 'skip'::text, catch_up text DEFAULT 'latest'::text, max_catch_up integer DEFAULT 100, jitter_seconds double precision DEFAULT 0, priority integer DEFAULT 0, timeout_seconds double precision DEFAULT NULL::double precision, labels jsonb DEFAULT NULL::jsonb, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns boolean, owner pgflow_owner
  -- Makes a schedule, or sets it anew; false if it is like that already. spec: {"cron": [...]} or {"every": seconds, "offset": seconds}, and perhaps tz, not_on and only_on (days), start_at and end_at. slot_parameter: parameter of the workflow that gets {"at": the slot}
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.set_sealing(is_on boolean, by text DEFAULT NULL::text) returns void, owner pgflow_owner
  -- Has workers seal the journal from now on, what is in it by then included; or no longer
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.settle_budgets_(units jsonb, closes jsonb, t timestamp with time zone) returns void, owner pgflow_owner
  -- Books what the units of a batch say was spent, and returns the reservations of calls that are over. The pools are locked
  plpgsql volatile

function pgflow.settle_by_word_(me bigint, call integer, payload json, sent_by text, token bigint, t timestamp with time zone, is_over boolean, INOUT seq integer, OUT units jsonb) returns record, owner pgflow_owner
  -- Records a person's verdict on an effect, and its outcome, if the effect is still open and not in progress
  plpgsql volatile
  set enable_seqscan=off

function pgflow.settle_declarations_(t timestamp with time zone) returns boolean, owner pgflow_owner
  -- Sets schedules as the newest code of a living worker declares them, after workers have come or gone, and forgets what those that are gone have said; false if one is locked
  plpgsql volatile

function pgflow.settle_effect(effect_key text, verdict text, value json DEFAULT 'null'::json, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Settles an effect whose outcome is unknown, or that was accepted: confirmed with its result, failed, or absent (then it may be retried). An uncompensated effect: taken_back, or stands. PF001 if no open effect has the key, PF006 while it is in progress
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.settle_events(name text, token bigint, upto bigint, results json, lease_seconds double precision DEFAULT 30, threshold integer DEFAULT 5, cooldown_seconds double precision DEFAULT 30) returns boolean, owner pgflow_owner
  -- Says what became of events that were taken, as arrays of number, ok, failed, dead or behind, error, and seconds until the next try; the cursor passes those up to the number given. False, and nothing is written, if another has the relay by now
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_worker

function pgflow.settle_fenced_(units jsonb, closes jsonb, t timestamp with time zone) returns void, owner pgflow_owner
  -- The same for the transaction of a step, whose last locks these are
  plpgsql volatile

function pgflow.settle_fleet_(t timestamp with time zone) returns boolean, owner pgflow_owner
  -- Chooses again which declarations count if workers have come or gone; true if it has
  plpgsql volatile

function pgflow.settle_locks_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb, is_lost boolean, to_wake bigint[]), owner pgflow_owner
  -- Takes back what runs of a batch give back, and says which of the locks they rest on are lost, before anything else of them is decided: of each position the last seq then and its units
  plpgsql volatile
  set enable_seqscan=off

function pgflow.settle_updates_(told jsonb, t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Takes updates out of the mailboxes and writes down their answers, with the units of a batch that say so; refuses (PF006) to take one that is not there. Answers the chains of runs that asked for one, to be woken
  plpgsql volatile
  set enable_seqscan=off

function pgflow.share_session(worker integer) returns void, owner pgflow_owner
  -- Holds the latch of a worker for as long as this session lives
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.share_worker_(worker_id integer) returns boolean, owner pgflow_owner
  -- Keeps a worker's leases where they are until this transaction ends, without a lock on each; false if it cannot
  plpgsql volatile

function pgflow.shared_sessions_() returns integer[], owner pgflow_owner
  -- Workers that this session has been, of which it may still hold the latch
  sql stable

function pgflow.shrink_journal(max_units integer DEFAULT 10000, max_bytes bigint DEFAULT 67108864, min_bytes bigint DEFAULT 8388608, backing_off boolean DEFAULT false) returns TABLE(partition text, bytes_before bigint, bytes_after bigint, units bigint), owner pgflow_owner
  -- Shrinks partitions of the journal that hold little after history was removed: moves what is left in each into a new file, if it is not more than that (max_bytes null = any size); answers which. Workers call it once a minute, and back off from one that others use
  plpgsql volatile security definer
  set lock_timeout=100ms
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set seq_page_cost=1000000
  set max_parallel_workers_per_gather=0
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.signal_rows_(list jsonb) returns TABLE(call integer, name text), owner pgflow_owner
  -- Rows of the protocol as columns: waits for signals
  sql stable

function pgflow.slot_due_(name text, slot timestamp with time zone, jitter_seconds double precision) returns timestamp with time zone, owner pgflow_owner
  -- Time at which a slot is due: its own and a part of the jitter, which is always the same for one slot
  sql stable strict

function pgflow.slot_of_(match jsonb, OUT path text[], OUT value bigint) returns record, owner pgflow_owner
  -- The first constant of a match: its path, and its hash. An empty path and 0 if there is none
  sql immutable

function pgflow.slot_text_(slot timestamp with time zone) returns text, owner pgflow_owner
  -- A slot as a text, in UTC: 2026-03-29T01:30:00Z
  sql stable strict

function pgflow.slots_(spec jsonb, after timestamp with time zone, most integer, upto timestamp with time zone DEFAULT 'infinity'::timestamp with time zone) returns timestamp with time zone[], owner pgflow_owner
  -- The next slots of a schedule after a time, so many at most
  plpgsql stable

function pgflow.speaks_for_others() returns boolean, owner pgflow_owner
  -- True if you may answer gates in the names of others: as a member of pgflow_speaker, as the owner of the schema, or as a superuser
  sql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_worker

function pgflow.spend_(f pgflow.flow_frame, node pgflow.flow_node, worker_id integer, token bigint, chain bigint, amounts jsonb, OUT after pgflow.flow_frame, OUT place text, OUT wake jsonb) returns record, owner pgflow_owner
  -- Has the budget of a run allow what it spends, and charges it: both, or neither
  plpgsql volatile

function pgflow.stage_of_(asked pgflow.gate, t timestamp with time zone) returns integer, owner pgflow_owner
  -- Stage of a gate: 0 = its approvers may answer, 1 = the first to whom it is escalated
  sql immutable

function pgflow.start_children_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb, lanes integer[]), owner pgflow_owner
  -- Starts the children that runs of a batch ask for, each recorded as started or refused: of each position of the batch the last seq then, its units, and lanes
  plpgsql volatile
  set enable_seqscan=off

function pgflow.start_failure_(f pgflow.batch_failure, member_id bigint, t timestamp with time zone) returns integer, owner pgflow_owner
  -- Starts the run that begins with the failure of this member, and notes it; answers its lane
  plpgsql volatile

function pgflow.start_known_(me bigint, wanted jsonb, t timestamp with time zone, OUT kind "char", OUT payload json, OUT lane_id integer) returns record, owner pgflow_owner
  -- Starts one child whose key may name a run already: what is recorded of it, started or refused
  plpgsql volatile

function pgflow.start_rows_(list json) returns TABLE(n integer, start json, call integer, effect text, name text, ordinal text, args_hash bigint, mark jsonb), owner pgflow_owner
  -- Rows of the protocol as columns: licences in the column ``starts`` of units
  sql stable

function pgflow.start_run(workflow text, input anycompatible DEFAULT '{}'::json, key text DEFAULT NULL::text, queue text DEFAULT 'default'::text, priority integer DEFAULT 0, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, timeout_seconds double precision DEFAULT NULL::double precision, labels jsonb DEFAULT NULL::jsonb, metadata jsonb DEFAULT NULL::jsonb, tenant text DEFAULT ''::text, key_retention_seconds integer DEFAULT NULL::integer, version text DEFAULT ''::text, if_taken text DEFAULT 'match'::text, defaults json DEFAULT NULL::json, start_id uuid DEFAULT NULL::uuid, pool text DEFAULT NULL::text, budget jsonb DEFAULT NULL::jsonb, key_seconds double precision DEFAULT NULL::double precision, debounce_seconds double precision DEFAULT NULL::double precision, max_wait_seconds double precision DEFAULT NULL::double precision, collect integer DEFAULT NULL::integer, OUT run_key text, OUT run_id bigint, OUT is_new boolean, OUT lane_id integer, OUT replaced bigint) returns record, owner pgflow_owner
  -- Starts a run in the caller's transaction, or finds the one that the key already names (PF002 if that one differs); with a version it waits for workers that have it. input: json, jsonb, or the text of one. if_taken: match, reject (PF002 for any run), attach (that run, whatever its input) or replace (cancels that run, answers its chain for wake(), and begins once it has ended). defaults: what the workflow takes for parameters that are left out. start_id: a UUID by which a start that is sent again knows its own run. pool: the pool that it draws on (PF026 if there is none), as its children do; budget: limits by unit of a pool of its own, which draws on that one. key_seconds: the key counts while its run is open, and so long after its start; 0 = while it is open, null = for good. debounce_seconds: the run begins so long after the last start with its key, which alone counts, and at most max_wait_seconds after the first. A run of the key that has begun is left alone, and loses the key. collect: the input is a list, and the run gets those of all starts with its key, up to so many items; it begins once it has them, or max_wait_seconds after the first start
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.start_runs(workflow text, runs jsonb, queue text DEFAULT 'default'::text, priority integer DEFAULT 0, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, timeout_seconds double precision DEFAULT NULL::double precision, labels jsonb DEFAULT NULL::jsonb, metadata jsonb DEFAULT NULL::jsonb, tenant text DEFAULT ''::text, version text DEFAULT ''::text, keys_are_new boolean DEFAULT false, if_taken text DEFAULT 'match'::text, defaults json DEFAULT NULL::json, start_id uuid DEFAULT NULL::uuid, pool text DEFAULT NULL::text, budget jsonb DEFAULT NULL::jsonb, key_seconds double precision DEFAULT NULL::double precision) returns TABLE(run_key text, run_id bigint, is_new boolean, lane_id integer), owner pgflow_owner
  -- Starts many runs of one workflow, all or none: runs is [[key or null, input as text], ...]; answers in that order. keys_are_new: they are UUIDs made up for this call, so none is looked for; sent again, because the answer was lost, the same batch says false. if_taken, defaults, start_id, pool, budget and key_seconds are as of start_run; a batch cannot replace
  plpgsql volatile security definer
  set plan_cache_mode=force_generic_plan
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.start_slot_(s pgflow.schedule, slot timestamp with time zone) returns TABLE(run_key text, run_id bigint, is_new boolean, lane_id integer), owner pgflow_owner
  -- Starts the run of a slot, or finds the one that it has
  plpgsql volatile

function pgflow.starters_(is_first boolean) returns text[], owner pgflow_owner
  -- Transactions that have drawn a number for a run, and have not ended; at first also those that have looked whether anything is sealed
  sql volatile

function pgflow.status_(run_id bigint) returns text, owner pgflow_owner
  -- Status of a run, read from its place
  sql stable

function pgflow.stem_at_(segments jsonb, own text, seq integer) returns text, owner pgflow_owner
  -- The stem that holds at a seq, by segments [[last seq or null, stem], ...] and the run's own after them
  sql immutable

function pgflow.step_details(run_id bigint, call integer) returns text, owner pgflow_owner
  -- Progress that the last attempt of a step reported
  sql stable security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.stop_all_(questions jsonb, positions integer[], pausing integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, place text, to_wake bigint[]), owner pgflow_owner
  -- Pauses idle runs of a batch, and holds those that only a person can continue instead of parking them
  plpgsql volatile

function pgflow.sweep_documents(most integer DEFAULT 1000) returns integer, owner pgflow_owner
  -- Deletes documents that have expired, and answers how many it has found
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.sweep_keys(max integer DEFAULT 1000, wait boolean DEFAULT true) returns integer, owner pgflow_owner
  -- Frees keys of finished chains whose retention is over, of each retention at most as many as it looks at: the oldest, and some from anywhere; answers how many. Workers call it once a minute, and do not wait for others who remove history
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.sweep_locks(max integer DEFAULT 1000) returns TABLE(lanes integer[], mail bigint[], ended bigint[], busy integer), owner pgflow_owner
  -- Lets in who waits for a lock that was given back, as every poll of a worker does; in a READ COMMITTED transaction of its own
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.sweep_locks_(max integer, t timestamp with time zone) returns void, owner pgflow_owner
  -- Decides what others could not: forgets waits whose time is over, serves the keys that were nudged or have expired, and looks for circles
  plpgsql volatile
  set enable_seqscan=off

function pgflow.take_events(name text, token bigint, lease_seconds double precision DEFAULT 30, max integer DEFAULT 100, threshold integer DEFAULT 5, OUT state text, OUT wait_seconds double precision, OUT events json) returns record, owner pgflow_owner
  -- Leases a relay and answers the next events that it delivers, those of each key in their order, as arrays of number, topic, key, payload, time in microseconds, run, attempts, is it fresh, does it stand behind another. Or the state, and when to ask again: leased by another, busy, paused, circuit open, behind a slow transaction, idle
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_worker

function pgflow.take_heads_(lanes integer[], max integer, suspects boolean, worker_id integer, tokens bigint[], after bigint[] DEFAULT NULL::bigint[]) returns bigint[], owner pgflow_owner
  -- Moves up to max rows of `ready` to `lease`, or one group of suspects
  plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.take_in_saga_(chain bigint, generation integer, carried jsonb) returns void, owner pgflow_owner
  -- Takes in what an imported generation had from those before it, which are imported already
  sql volatile
  set enable_seqscan=off

function pgflow.take_keys_(questions jsonb) returns void, owner pgflow_owner
  -- Takes the keys of all children of a batch in the order of keys, ahead of their runs, so that two batches wait and never deadlock
  plpgsql volatile

function pgflow.take_lanes_(questions jsonb) returns void, owner pgflow_owner
  -- Makes what lanes the children of a batch need in one order, ahead of their runs, so that two batches wait and never deadlock
  sql volatile

function pgflow.take_lock(key text, holder text, ttl interval, shared boolean DEFAULT false, patience interval DEFAULT NULL::interval, secret text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Takes a lock for plain code, for a limited time: answers the fence, or null if it is held or others wait for it. With patience the holder stands in the queue, and must ask again within that time. secret = what the holder shows to renew the lock or give it back; without one, only this session can. The same holder who asks again with it goes on holding, under a new fence. PF003 without a limit of time; PF006 if the holder has it in the other mode
  plpgsql volatile security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.take_mail_(taken jsonb) returns void, owner pgflow_owner
  -- Deletes the messages that a batch records as taken; refuses (PF006) those that are not there
  plpgsql volatile
  set enable_seqscan=off

function pgflow.take_names_(questions jsonb) returns void, owner pgflow_owner
  -- Takes the lanes and keys of all children of a batch, ahead of their runs
  plpgsql volatile

function pgflow.take_out_(chain bigint, message bigint, why_moved text, number bigint, said_by text, why text) returns void, owner pgflow_owner
  -- Keeps a copy of a message that is taken out of a mailbox, under another number if that one stays in use
  sql volatile

function pgflow.take_pools_(batch jsonb) returns text[], owner pgflow_owner
  -- Locks the pools that the runs of a batch draw on, all in one order
  plpgsql volatile
  set enable_seqscan=off

function pgflow.take_runs_(tenant text, keys text[], are_new boolean, ids bigint[], stems uuid[], inputs text[], lane integer, priority integer, run_at timestamp with time zone, due timestamp with time zone, labels jsonb, metadata jsonb, start_id uuid DEFAULT NULL::uuid, pool text DEFAULT NULL::text, budget jsonb DEFAULT NULL::jsonb) returns bigint[], owner pgflow_owner
  -- Inserts the runs whose keys are free, in the order of keys (new ones: all of them); answers whose each key is, null for one that was freed meanwhile
  plpgsql volatile

function pgflow.take_turns_(queue text, ids bigint[], worker_id integer, tokens bigint[], t timestamp with time zone) returns void, owner pgflow_owner
  -- In a line -> lease, for runs whose ready rows are locked
  plpgsql volatile

function pgflow.take_update(names text[], passed_over bigint[] DEFAULT '{}'::bigint[]) returns TABLE(mail_id bigint, name text, key text, update text, args text, expect bigint, sent_by text, idempotency_key text), owner pgflow_owner
  -- Takes the oldest update of an entity whose code is at hand, save those passed over, to be made in this transaction
  sql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.take_verdicts_(questions jsonb, positions integer[], seqs integer[], t timestamp with time zone) returns TABLE(pos integer, seq integer, units jsonb), owner pgflow_owner
  -- Takes the verdicts on effects and obligations of runs of a batch: of each position the last seq then, and its units
  plpgsql volatile
  set enable_seqscan=off

function pgflow.take_words_(me bigint, chain bigint, token bigint, t timestamp with time zone, is_over boolean, INOUT seq integer, OUT units jsonb) returns record, owner pgflow_owner
  -- Takes the verdicts of people and webhooks on the effects and obligations of a run, and records them
  plpgsql volatile
  set enable_seqscan=off

function pgflow.taken_rows_(list jsonb) returns TABLE(run_id bigint, chain_id bigint, name text, signal_id bigint, kind "char"), owner pgflow_owner
  -- Rows of the protocol as columns: messages to delete from mailboxes; a unit of the batch records each
  sql stable

function pgflow.tell_askers_(chains bigint[], update_ids text[], t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Sends the answers of updates to the runs that wait for them; answers the chains of these, to be woken
  plpgsql volatile
  set enable_seqscan=off

function pgflow.tell_parents_(run_ids bigint[], t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Posts the outcome of finished children to their parents that are still open; answers the parents' chains
  plpgsql volatile

function pgflow.tell_soft_(names text[], runs bigint[]) returns bigint[], owner pgflow_owner
  -- Sends the signal budget to those of these runs of whose pools one has passed its soft threshold, once a period; answers their chains
  plpgsql volatile
  set enable_seqscan=off

function pgflow.tell_waiter_(waiter pgflow.lock_wait, said json, at timestamp with time zone) returns bigint, owner pgflow_owner
  -- Posts the outcome of its wait for a lock to a run; returns its chain
  plpgsql volatile

function pgflow.tell_workers_(lanes integer[], mail bigint[]) returns void, owner pgflow_owner
  -- Notifies workers of lanes with ready runs and of leased runs with mail, once the transaction is committed: `r1,2` or `m7,8`
  sql volatile

function pgflow.tend_lines_(max integer, t timestamp with time zone) returns integer[], owner pgflow_owner
  -- Clears away what lines need no more, and takes runs out of those that are over; answers their lanes
  plpgsql volatile

function pgflow.terms_(rule pgflow.policy_rule) returns jsonb, owner pgflow_owner
  -- Terms of the gate that a rule asks; null = anybody may answer, and it waits for good
  sql immutable

function pgflow.test_run(workflow text, input json DEFAULT '{}'::json, signals jsonb DEFAULT '{}'::jsonb, children jsonb DEFAULT '{}'::jsonb, keep boolean DEFAULT false) returns jsonb, owner pgflow_owner
  -- Plays a run of a workflow in SQL to its end and rolls it back: {status, output, error, steps, waits}. signals: {name: payload, or a list of them}; a time-out is over as soon as nothing else can go on. children: {workflow: result} of those that are not in SQL. keep: nothing is rolled back, so that you can look at what the steps have written; the transaction must be rolled back
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator

function pgflow.time_out_locks_(questions jsonb, positions integer[], t timestamp with time zone) returns integer[], owner pgflow_owner
  -- Takes runs of a batch out of queues in which they have waited for as long as they wanted; answers the positions of those that have mail of it now
  plpgsql volatile
  set enable_seqscan=off

function pgflow.timer_rows_(list jsonb) returns TABLE(call integer, seq integer, kind "char"), owner pgflow_owner
  -- Rows of the protocol as columns: sleeps, and time-outs of waits; of reasons to wake, only the first two slots
  sql stable

function pgflow.told_(why text, most integer) returns text, owner pgflow_owner
  -- A given reason, with the passwords in it masked, cut to so many characters
  plpgsql immutable

function pgflow.told_heritage_(run_id bigint, heritage jsonb) returns jsonb, owner pgflow_owner
  -- Facts for a replay on a run that begins with the journal of another
  sql stable

function pgflow.transaction_status(xid text) returns text, owner pgflow_owner
  -- committed, aborted or in progress: an ambiguous COMMIT in progress must be waited out; aborted for a number that this server never gave out
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.transfer_obligation(obligation_key text, holder text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Transfers an obligation to a person or party outside: it stays owed, but its run no longer waits for it. PF001 if no open obligation has the key
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.trial_balance() returns TABLE(ledger text, opened bigint, confirmed bigint, failed bigint, unknown bigint, accepted bigint, open bigint), owner pgflow_owner
  -- The trial balance of the ledgers: what was opened is the sum of the rest. It reads the whole journal
  sql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.trigger_schedule(name text, why text DEFAULT NULL::text, sent_by text DEFAULT NULL::text, slot_at timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(run_key text, run_id bigint, is_new boolean, lane_id integer), owner pgflow_owner
  -- Starts a run of a schedule now, paused or not, whatever runs of it are open. slot_at: the slot that it is of, under which it is started once; the present time if none is given. PF027 if there is no such schedule
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_operator

function pgflow.try_circles_() returns boolean, owner pgflow_owner
  -- Takes the right to look for circles of runs that wait for each other, until this transaction ends; false if it cannot
  plpgsql volatile

function pgflow.try_key_(key text) returns boolean, owner pgflow_owner
  -- Takes a key to decide about it, until this transaction ends; false if it cannot
  plpgsql volatile

function pgflow.try_policy(name text, risk text, request jsonb DEFAULT '{}'::jsonb, by_model boolean DEFAULT false, role text DEFAULT NULL::text) returns TABLE(version integer, rule integer, needs text, fits boolean, counts boolean, terms jsonb, says jsonb), owner pgflow_owner
  -- Says of each rule of the policy in force whether it would fit an effect with these arguments, and which one would count: the first. Of what a model has chosen, and of another role than yours, if you say so. Nothing is done
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_worker

function pgflow.unasked_(run_id bigint) returns SETOF pgflow.carried, owner pgflow_owner
  -- Effects that a run was given with their results and has not asked for
  sql stable

function pgflow.unbegun_(queue text, upto bigint) returns TABLE(run_id bigint, chain_id bigint), owner pgflow_owner
  -- Runs of a queue that wait, and have not been claimed, paused or cancelled, up to a number
  plpgsql stable

function pgflow.undeclared(declared jsonb) returns text[], owner pgflow_owner
  -- Names in an app's declarations that are not set yet, in the form that declare_app takes
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_declarer
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.undone_from_(run_id bigint, cut integer) returns TABLE(key text, is_done boolean), owner pgflow_owner
  -- Keys of effects that a run took back after a cut, or a later generation of its chain did, or began to, each with whether it is done
  sql stable

function pgflow.unit_json_(seq integer, call integer, kind "char", name text, payload json) returns jsonb, owner pgflow_owner
  -- A unit as it travels in an answer, its payload as exact text
  sql stable

function pgflow.unit_rows_(list jsonb) returns TABLE(run_id bigint, seq integer, call integer, kind "char", name text, payload json, starts json, at timestamp with time zone, delay interval, token bigint, key text, apart integer), owner pgflow_owner
  -- Rows of the protocol as columns: units to append to journals
  sql stable

function pgflow.unit_text_(seq integer, call integer, kind "char", name text, key text, args_hash bigint, payload json, starts json, token bigint, at timestamp with time zone, recorded_at timestamp with time zone, due_at timestamp with time zone) returns text, owner pgflow_owner
  -- All of a unit as one text, with the hash of its payload: what its own hash is of
  sql stable

function pgflow.unname_blobs_(runs bigint[]) returns void, owner pgflow_owner
  -- Forgets what these runs named in values that were redacted, and removes blobs that no run names now
  plpgsql volatile

function pgflow.unnoted_(kinds text[], me bigint DEFAULT NULL::bigint) returns TABLE(finding text, detail text), owner pgflow_owner
  -- Rows of these kinds, or those of a run, of which nothing was noted: no function of ours has written them
  plpgsql stable

function pgflow.unshare_session(worker integer) returns void, owner pgflow_owner
  -- Gives that latch back
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_worker

function pgflow.unwrapped_(body text) returns text, owner pgflow_owner
  -- Text of a value without the wraps in its envelopes (sql/ops/rewrap.sql): the same after a rotation of keys
  sql immutable

function pgflow.update_entity(name text, key text, from_version bigint, update text, args json, verdict json, state json DEFAULT NULL::json, run_id bigint DEFAULT NULL::bigint, call integer DEFAULT NULL::integer, idempotency_key text DEFAULT NULL::text, said_by text DEFAULT NULL::text, mail_id bigint DEFAULT NULL::bigint) returns bigint, owner pgflow_owner
  -- Writes what an update has made of an entity that open_entity has locked, and a row of its history; a state of null leaves it as it is. Answers the version then. PF021 if a run or mail is named by a role that is no worker's
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.update_reply(key text, update_id text, tenant text DEFAULT ''::text, OUT status text, OUT value json, OUT error json) returns record, owner pgflow_owner
  -- State of an update: waiting; done, with the value of its handler; failed, with the error that this raised; rejected, with that of its validator; refused, since the run ended before it was answered. PF001 if the run has none of this id
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.update_verdict(mail_id bigint, OUT state text, OUT verdict json, OUT error json) returns record, owner pgflow_owner
  -- State of an update that was asked for by post_update: waiting; done, with its verdict; or refused, with the error. PF001 if there is none of this number
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.used_numbers_() returns TABLE(sequence regclass, used bigint), owner pgflow_owner
  -- The last number of each sequence that a row has; null if there is none
  plpgsql stable

function pgflow.uuid7_() returns uuid, owner pgflow_owner
  -- A UUID version 7 (RFC 9562, 5.7): milliseconds since 1970, then random bits
  sql volatile

function pgflow.uuids7_(count integer) returns uuid[], owner pgflow_owner
  -- So many UUIDs of version 7 of one millisecond, for a batch
  sql volatile

function pgflow.value_hash_(body text) returns bytea, owner pgflow_owner
  -- Hash of a value's text; of one that was redacted, the hash that it had
  sql stable

function pgflow.values_with_blobs_(runs bigint[]) returns TABLE(run_id bigint, body text), owner pgflow_owner
  -- Values of these runs that may name blobs; messages are of the first run of their chain
  sql stable

function pgflow.verdict_(p_run_id bigint, p_token bigint, p_expected integer, is_locked boolean, held_token bigint) returns text, owner pgflow_owner
  -- Verdict on one run of a batch: ok, already, busy or lost
  plpgsql volatile
  set enable_seqscan=off

function pgflow.verify_anchor(anchor jsonb) returns jsonb, owner pgflow_owner
  -- Compares an anchor that was kept elsewhere with the roots that are here: {days, rounds: the last one that it covers, findings: [[place, finding, detail], ...]}. PF003 if it is none
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.verify_days() returns jsonb, owner pgflow_owner
  -- Compares the roots and heads of days with their rounds: {days, findings: [[day, finding, detail], ...]}
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.verify_evidence(after bigint DEFAULT 0, max integer DEFAULT 1000) returns jsonb, owner pgflow_owner
  -- Compares a page of what operators did with what was noted of it: broken locks, changes of policy, queues, pools, schedules and relays, removals of history, losses. {rows: how many, findings: [[finding, detail], ...], next: where the next page begins, null at the end, where it also finds what was put in}. Of runs verify_runs does so
  plpgsql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.verify_rounds(after bigint DEFAULT 0, max integer DEFAULT 1000) returns jsonb, owner pgflow_owner
  -- Compares a page of rounds with their seals: {rounds, findings: [[round, finding, detail], ...], next}
  plpgsql stable security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.verify_run_(me bigint) returns TABLE(finding text, detail text), owner pgflow_owner
  -- Compares a run with its seals; answers what is not as it was
  plpgsql stable
  set enable_seqscan=off

function pgflow.verify_runs(after bigint DEFAULT '-9223372036854775808'::bigint, max integer DEFAULT 1000, key text DEFAULT NULL::text, tenant text DEFAULT ''::text) returns jsonb, owner pgflow_owner
  -- Compares a page of runs, or the one with a key, with their seals: {runs: how many, findings: [[run_id, key, generation, finding, detail], ...], next: where the next page begins, null at the end}
  plpgsql stable security definer
  set enable_seqscan=off
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_operator
  grant execute to pgflow_speaker

function pgflow.verify_said_(me bigint) returns TABLE(finding text, detail text), owner pgflow_owner
  -- Compares the answers at the gates of a run, and the author of its import, with their noted hashes; returns the differences
  plpgsql stable

function pgflow.wait_for_latch_(name text, is_shared boolean, what text) returns void, owner pgflow_owner
  -- Takes a latch until the end of the transaction, waiting for ten seconds at most; then it says who has it (PF006)
  plpgsql volatile

function pgflow.wait_question_(INOUT f pgflow.flow_frame, node pgflow.flow_node, value jsonb, OUT units jsonb, OUT question jsonb) returns record, owner pgflow_owner
  -- The question to the database of a wait, and the unit that begins it
  plpgsql volatile

function pgflow.waits_of_(ids bigint[]) returns TABLE(run_id bigint, alternative text, waits_for bigint), owner pgflow_owner
  -- For each of these runs that only other runs let go on: those, by alternative. It goes on with any alternative, and an alternative needs all of its own; null = what may come from outside
  sql volatile
  set enable_seqscan=off

function pgflow.waive_obligation(obligation_key text, why text, sent_by text DEFAULT NULL::text) returns bigint, owner pgflow_owner
  -- Closes an obligation that need not be done, with who says so and why. PF001 if no open obligation has the key
  plpgsql volatile security definer
  set jit=off
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_worker

function pgflow.wake(chains bigint[] DEFAULT NULL::bigint[], max integer DEFAULT 1000, tell boolean DEFAULT true) returns TABLE(lanes integer[], mail bigint[], ended bigint[], busy integer), owner pgflow_owner
  -- Looks at the runs of these chains, or of all nudged ones, moves those with a reason to go on, and notifies workers unless tell is false; returns lanes made ready, leased runs with mail, and runs ended
  plpgsql volatile security definer
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.wake_due_(max integer, t timestamp with time zone) returns integer[], owner pgflow_owner
  -- Parked -> ready for runs with a timer that is due
  plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan

function pgflow.wake_parked_(ids bigint[], t timestamp with time zone) returns TABLE(run_id bigint, lane_id integer), owner pgflow_owner
  -- Parked -> ready, for runs whose parked rows are locked
  plpgsql volatile
  set enable_seqscan=off

function pgflow.wal_(OUT timeline integer, OUT flushed bigint, OUT recovered_to bigint, OUT waits boolean) returns record, owner pgflow_owner
  -- Timeline and position of the server's log, how far it had replayed another's when it was promoted, and whether commits wait for a standby
  plpgsql volatile

function pgflow.whole_mark_(f pgflow.flow_frame) returns jsonb, owner pgflow_owner
  -- The mark of the next unit, with all that it may have
  plpgsql stable

function pgflow.why_unclaimed(lane_id integer, OUT code text, OUT why text) returns record, owner pgflow_owner
  -- Reason why no worker takes queued runs of a lane, in words and as a code; null = one does
  sql stable security definer
  set jit=off
  grant execute to pgflow_approver
  grant execute to pgflow_auditor
  grant execute to pgflow_client
  grant execute to pgflow_operator
  grant execute to pgflow_speaker
  grant execute to pgflow_tenant
  grant execute to pgflow_worker

function pgflow.wind_up_(run_ids bigint[], t timestamp with time zone) returns bigint[], owner pgflow_owner
  -- Tells others that these runs have ended, and cancels children; answers the chains to wake
  plpgsql volatile

function pgflow.withdraw_(f pgflow.flow_frame, token bigint) returns pgflow.flow_frame, owner pgflow_owner
  -- Withdraws the gate or the wait that is open
  plpgsql volatile

function pgflow.withdraw_(me bigint, shown text) returns void, owner pgflow_owner
  -- Takes the result of a child back from its parent's mailbox; refuses (PF006) if the parent has taken it, or ever had its effects
  plpgsql volatile

function pgflow.without_runs_(batch jsonb, bad jsonb) returns jsonb, owner pgflow_owner
  -- A batch without these runs: every list of it, so that no kind of row is forgotten
  sql stable

function pgflow.work(IN seconds double precision DEFAULT 10, IN until_idle boolean DEFAULT false, IN steps_per_commit integer DEFAULT 1, IN claim integer DEFAULT 1, IN queues text[] DEFAULT '{default}'::text[], IN idle_seconds double precision DEFAULT 0.05, IN steps integer DEFAULT NULL::integer) returns nothing, owner pgflow_owner
  -- Works on runs of workflows in SQL for so many seconds, until none can go on, or for so many steps; a step, or steps_per_commit of them, is one transaction. CALL it alone, outside of a transaction
  plpgsql volatile
  grant execute to pgflow_worker

function pgflow.work_until(INOUT step jsonb, IN seconds double precision DEFAULT 10, IN until_idle boolean DEFAULT false, IN steps_per_commit integer DEFAULT 1, IN claim integer DEFAULT 1, IN queues text[] DEFAULT '{default}'::text[], IN idle_seconds double precision DEFAULT 0.05, IN steps integer DEFAULT NULL::integer) returns nothing, owner pgflow_owner
  -- Does what work() does, for a driver that can set statement_timeout: with {} it ends before each step that has a timeout, and answers what run_timed() takes; null = all is done. CALL it again with what that answers
  plpgsql volatile
  grant execute to pgflow_worker

type pgflow.amounts as jsonb CHECK (((jsonb_typeof(VALUE) = 'object'::text) AND (octet_length((VALUE)::text) <= 4096))) -- Amounts by unit, such as {"usd": 0.04, "tokens": 12000}: an object of at most 4 KiB

type pgflow.flow_state as text CHECK ((VALUE = ANY (ARRAY['on'::text, 'undoing'::text, 'handling'::text]))) -- What a run of a workflow in SQL does: see sql/flows/frame.sql

type pgflow.key_retention as integer CHECK ((VALUE >= 0)) -- Seconds for which a key stays taken

type pgflow.key_text as text CHECK (((char_length(VALUE) >= 1) AND (char_length(VALUE) <= 128))) -- Key of a run: 1 to 128 characters

type pgflow.run_input as json CHECK (((json_typeof(VALUE) = 'object'::text) AND (octet_length((VALUE)::text) <= 1048576))) -- Arguments of a run by their names: at most 1 MiB, as the encoder wrote them

type pgflow.run_object as jsonb CHECK (((jsonb_typeof(VALUE) = 'object'::text) AND (octet_length((VALUE)::text) <= 16384))) -- Labels or metadata of a run: an object of at most 16 KiB

type pgflow.run_value as json CHECK ((octet_length((VALUE)::text) <= 1048576)) -- What a run returned or raised: at most 1 MiB, as the encoder wrote it

type pgflow.tenant_name as text CHECK ((octet_length(VALUE) <= 255)) -- Name of a tenant: at most 255 bytes, empty where there is only one

type pgflow.unit_call as integer CHECK ((VALUE >= 0)) -- Number of a durable call; 0 = of the run itself

type pgflow.unit_letter as "char" CHECK ((VALUE = ANY (ARRAY['A'::"char", 'B'::"char", 'C'::"char", 'D'::"char", 'E'::"char", 'F'::"char", 'G'::"char", 'H'::"char", 'K'::"char", 'L'::"char", 'M'::"char", 'O'::"char", 'R'::"char", 'S'::"char", 'T'::"char", 'U'::"char", 'W'::"char", 'X'::"char", 'Z'::"char", 'a'::"char", 'b'::"char", 'c'::"char", 'd'::"char", 'e'::"char", 'f'::"char", 'g'::"char", 'h'::"char", 'i'::"char", 'j'::"char", 'k'::"char", 'l'::"char", 'm'::"char", 'n'::"char", 'o'::"char", 'p'::"char", 'q'::"char", 'r'::"char", 's'::"char", 't'::"char", 'u'::"char", 'v'::"char", 'w'::"char", 'x'::"char", 'y'::"char"]))) -- Kind of a unit: see pgflow.unit_kind

type pgflow.unit_name as text CHECK ((octet_length(VALUE) <= 255)) -- Name of a call, or its idempotency key: at most 255 bytes

type pgflow.unit_payload as json CHECK ((octet_length((VALUE)::text) <= 1114112)) -- What a unit holds: a value of 1 MiB, and 64 KiB around it

unit kind A effect_accepted, terminal: commit_units: the counterparty took an effect on, and will confirm it later
unit kind B obligation_breached: note_breach_: it was due and not discharged
unit kind C effect_confirmed, terminal: commit_units, look: an effect was done; its result
unit kind D obligation_closed: commit_units: discharge(), waive(), transfer(); close_by_word_: said by others; adopt_obligations_: handed on
unit kind E effect_settled: commit_units, look: who said what became of an effect
unit kind F effect_failed, terminal: commit_units, look: the counterparty refused, or nothing was done
unit kind G gate_answered, terminal: answer: somebody answered, or the time for it was over
unit kind H entity_updated, terminal: fence_step: an update of an entity, with its verdict
unit kind K child_finished, terminal: settle: the result of a child, or why it could not be started
unit kind L lock_won, terminal: ask_locks_, look: a run holds a lock from here on; its fence
unit kind M budget_charged, terminal: commit_units, fence_step: charge()
unit kind O obligation_opened: commit_units: owe(); adopt_obligations_: one that another generation had opened
unit kind R compensated, terminal: commit_units: there was nothing to take back, since what had been accepted was not done
unit kind S signal_received, terminal: settle: the database chose and deleted a message
unit kind T timer_fired, terminal: settle: the database found a sleep due
unit kind U effect_unknown: commit_units, settle: nobody knows yet whether an effect was done
unit kind W wait_timed_out, terminal: settle: the database found the time-out of a wait due
unit kind X step_abandoned, terminal: commit_units: workflow code gave up a step whose body may still be running
unit kind Z redacted: redact: a person had a value of the run replaced by its hash
unit kind a attempt_failed: commit_units: a body raised and will be tried again
unit kind b update_replied: commit_units: what the handler of an update came to
unit kind c step_completed, terminal: commit_units, fence_step: a body returned
unit kind d decision_recorded, terminal: commit_units: a choice with its reasons
unit kind e emitted, terminal: commit_units: emit()
unit kind f step_failed, terminal: commit_units, fence_step: a body raised for the last time
unit kind g gate_asked: answer: the database asked for an answer, and says until when
unit kind h update_taken, terminal: commit_units: serve() takes an update that its validator has let through
unit kind i effect_intended: settle: an effect may act from this commit on; carries the licence of its body
unit kind j effect_attempted: settle: an effect may act again, under the same key
unit kind k child_started: settle: the child exists from this commit on
unit kind l lock_asked: ask_locks_: a run stands in the queue of a lock
unit kind m budget_admitted: commit_units: the pool has let a call through
unit kind n continued, terminal: settle: the run goes on as the next generation
unit kind o operator: wake, settle: what a person did to the run, who and why
unit kind p patched, terminal: commit_units: the new side of a code change was taken
unit kind q budget_refused, terminal: commit_units: the pool has not let a call through
unit kind r step_renewed: commit_units: what a recorded result claimed was gone, and its body ran again; its new result
unit kind s step_started: commit_units: the licence of bodies, when no other unit of the flush can carry it
unit kind t timer_started: commit_units: a sleep or a time-out began; due_at is set by the commit
unit kind u lock_released, terminal: settle_locks_, look: a lock was given back or lost, or the wait for it refused
unit kind v state_set, terminal: commit_units: set_state()
unit kind w clock_read, terminal: commit_units: now() before anything else was recorded
unit kind x call_cancelled, terminal: commit_units: workflow code gave up a call; settle, with call 0: the whole run
unit kind y labels_set, terminal: commit_units: set_labels()
