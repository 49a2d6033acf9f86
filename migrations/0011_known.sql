-- Queues that take no run of a workflow that no worker has ever had; and messages that are sent again.

alter table pgflow.queue add column refuses_unknown boolean not null default false;
comment on column pgflow.queue.refuses_unknown is 'Whether a start of a workflow, or of a version of it, that no worker has ever had is refused';

create table pgflow.sent_key (
  chain_id bigint not null,
  message_id bigint,
  same_as bigint not null,
  key text not null check (char_length(key) between 1 and 255),
  primary key (chain_id, key)
);
comment on table pgflow.sent_key is 'Idempotency keys of messages, for as long as the history of their run: the same key to the same run is one message';
comment on column pgflow.sent_key.chain_id is 'The chain that it was sent to';
comment on column pgflow.sent_key.key is 'The key that the sender gave it';
comment on column pgflow.sent_key.message_id is 'The message that was sent under the key';
comment on column pgflow.sent_key.same_as is 'Hash of its name and payload: another message under the same key is refused';
