-- Gates: durable waits for an authorised answer. `gate` has the open ones only; the journal has them all. What people
-- said is in `gate_answer` for as long as the history of the run: rows are only added, one number after the other, so the
-- primary key decides whose answer comes first.

create table pgflow.gate (
  run_id bigint not null,
  chain_id bigint not null,
  asked_at timestamptz not null,
  expires_at timestamptz,
  timeout_seconds float8 check (timeout_seconds > 0),
  call int not null,
  seq int not null,
  quorum int not null check (quorum >= 1),
  needs_value boolean not null,
  gate text not null check (octet_length(gate) between 1 and 255),
  name text not null check (octet_length(name) between 1 and 255),
  on_timeout text not null check (on_timeout in ('expire', 'reject', 'escalate', 'approve')),
  payload_hash text not null,
  approvers text[] not null,
  escalate text[] not null,
  primary key (run_id, call)
);
-- squawk-ignore require-concurrent-index-creation
create unique index gate_key on pgflow.gate (gate);
-- squawk-ignore require-concurrent-index-creation
create index gate_asked_idx on pgflow.gate (asked_at);
comment on table pgflow.gate is 'Gates that wait for an answer; gone when one is answered, has expired, was given up, or its run has ended';
comment on column pgflow.gate.run_id is 'The run that waits';
comment on column pgflow.gate.chain_id is 'Its chain, under which the answer comes';
comment on column pgflow.gate.asked_at is 'Time of asking';
comment on column pgflow.gate.expires_at is 'Time from which no answer counts; null = it waits for good';
comment on column pgflow.gate.timeout_seconds is 'Seconds that each of those have who are asked one after the other; null = no limit';
comment on column pgflow.gate.call is 'Number of the call that waits';
comment on column pgflow.gate.seq is 'Place in the journal of the unit that asked, which has the request';
comment on column pgflow.gate.quorum is 'Number of people who must approve';
comment on column pgflow.gate.needs_value is 'True if an approval must bring a value: the request is none of the type that is asked for';
comment on column pgflow.gate.gate is 'Key of the gate, by which it is answered';
comment on column pgflow.gate.name is 'Name of the gate';
comment on column pgflow.gate.on_timeout is 'Verdict once its time is over: expire, reject, escalate or approve';
comment on column pgflow.gate.payload_hash is 'Hash of the request as it was asked';
comment on column pgflow.gate.approvers is 'Names or roles of whoever may answer at first; empty = anybody';
comment on column pgflow.gate.escalate is 'Names of those who are asked next, one after the other, when the time of those before is over';

create table pgflow.gate_answer (
  gate text not null,
  n int not null,
  run_id bigint not null,
  answered_at timestamptz not null,
  closes boolean not null,
  verdict text not null check (verdict in ('approve', 'reject', 'escalate', 'take_over', 'delegate', 'expire')),
  answered_by text not null check (octet_length(answered_by) between 1 and 1024),
  sent_by text not null,
  payload_hash text,
  hand_to text check (octet_length(hand_to) between 1 and 1024),
  reason text,
  refusal text,
  acting_as text[],
  value pgflow.run_value,
  primary key (gate, n)
);
-- squawk-ignore require-concurrent-index-creation
create index gate_answer_run_idx on pgflow.gate_answer (run_id);
comment on table pgflow.gate_answer is 'Answers at gates, in their order; kept as long as the history of the run';
comment on column pgflow.gate_answer.gate is 'Key of the gate';
comment on column pgflow.gate_answer.n is 'Its place among what was said at this gate, from 1';
comment on column pgflow.gate_answer.run_id is 'The run that asked';
comment on column pgflow.gate_answer.answered_at is 'Time of the answer';
comment on column pgflow.gate_answer.closes is 'True if it closed the gate: one of several approvals that are needed does not';
comment on column pgflow.gate_answer.verdict is 'approve, reject, escalate or take_over; delegate = somebody else may answer; expire = nobody did in time';
comment on column pgflow.gate_answer.answered_by is 'Name of whoever answered, as the caller gave it';
comment on column pgflow.gate_answer.sent_by is 'Role of the session that said so';
comment on column pgflow.gate_answer.payload_hash is 'Hash of what was answered: the request, or the last edit of it';
comment on column pgflow.gate_answer.hand_to is 'To whom it was escalated or delegated; null = to nobody';
comment on column pgflow.gate_answer.reason is 'The reason that was given; null = none';
comment on column pgflow.gate_answer.refusal is 'Reason why the code of the run could not take it, so that it does not count; null = it counts';
comment on column pgflow.gate_answer.acting_as is 'Roles of whoever answered, as the app gave them; null = none were given';
comment on column pgflow.gate_answer.value is 'Edited request, or the result of whoever took over; null = none';

alter table pgflow.gate set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Terms of the gates that a rule of the policy asks. The table has a few rows.
alter table pgflow.policy_rule
  add column author text check (author = 'model'),
  add column approvers text[] not null default '{}',
  add column quorum int not null default 1 check (quorum between 1 and 100),
  add column timeout_seconds float8 check (timeout_seconds > 0 and timeout_seconds < 'Infinity'),
  add column on_timeout text not null default 'expire' check (on_timeout in ('expire', 'reject', 'escalate', 'approve')),
  add column escalate text[] not null default '{}';
-- squawk-ignore constraint-missing-not-valid
alter table pgflow.policy_rule add constraint policy_rule_asks_check check (
  needs = 'gate' or approvers = '{}' and quorum = 1 and timeout_seconds is null
);

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values
  ('g', 'gate_asked', false, 'answer: the database asked for an answer, and says until when'),
  ('G', 'gate_answered', true, 'answer: somebody answered, or the time for it was over');

-- The letters are those of the table and of the checks that are there, whichever migrations have added some.
-- Not valid: the tables may be large, and what is in them has been checked by a narrower list.
do $$
declare
  mail record;
begin
  alter domain pgflow.unit_letter drop constraint unit_letter_check;
  execute (
    select format('alter domain pgflow.unit_letter add constraint unit_letter_check check (value in (%s)) not valid',
      string_agg(quote_literal(k.kind::text), ', ' order by k.kind::text collate "C"))
    from pgflow.unit_kind k
  );
  for mail in
    select c.conrelid::regclass as tab, c.conname as name, pg_get_constraintdef(c.oid) as said
    from pg_constraint c
    where c.conname in ('wait_kind_check', 'signal_kind_check') and c.connamespace = 'pgflow'::regnamespace
  loop
    execute format('alter table %s drop constraint %I', mail.tab, mail.name);
    execute format('alter table %s add constraint %I %s not valid', mail.tab, mail.name,
      replace(replace(mail.said, ' NOT VALID', ''), '])', ', ''g''::"char"])'));
  end loop;
end $$;
comment on table pgflow.wait is 'What a parked run waits for: s = a signal of that name; c = the result of a child of one of these calls (one row for all); e = what became of an effect; g = the answer of a gate';
comment on column pgflow.signal.kind is 's = signal, c = result of a child, x = cancel, p = pause, r = resume, t = retry, e = what became of an effect, g = the verdict of a gate';
comment on column pgflow.signal.run_id is 'Result of a child, what became of an effect, verdict of a gate: the generation that it is for, with its call';
