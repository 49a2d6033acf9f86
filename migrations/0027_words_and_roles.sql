-- Confirmations of accepted effects, and rules of the policy that look at who acts.
--
-- Whoever sends a confirmation over another channel, as a webhook or a message of a queue, sends it again until he
-- hears that it was taken. The debt may be closed by then. So here is what each reference came to.

create table pgflow.confirmation (
  chain_id bigint not null,
  said_at timestamptz not null,
  ref text primary key check (octet_length(ref) between 1 and 255),
  verdict text not null check (verdict in ('confirmed', 'failed')),
  said_by text
);
comment on table pgflow.confirmation is 'What became of effects that were accepted, by the reference of the counterparty; kept as long as the history of the run';
comment on column pgflow.confirmation.chain_id is 'The chain whose effect it is';
comment on column pgflow.confirmation.said_at is 'Time at which it was said';
comment on column pgflow.confirmation.ref is 'Reference of the counterparty';
comment on column pgflow.confirmation.verdict is 'confirmed or failed';
comment on column pgflow.confirmation.said_by is 'Name of whoever said so; null = its own settle function';

create index confirmation_chain_idx on pgflow.confirmation (chain_id);

-- The table has a few rows.
alter table pgflow.policy_rule add column role text check (octet_length(role) between 1 and 63);
