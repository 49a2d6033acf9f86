-- The ledgers as an auditor reads them: views over the journal, and over what is owed. Nothing here is stored twice.

drop view if exists pgflow.provenance;
drop view if exists pgflow.effects;
drop view if exists pgflow.decisions;
drop view if exists pgflow.obligations;

create view pgflow.decisions as
select r.key, u.key::text as decision, u.name::text as name, u.payload->'value' as value, u.payload->>'why' as why,
  u.payload->'evidence' as evidence,
  u.payload->'alternatives' as alternatives, u.payload->>'policy' as policy, u.payload->>'model' as model,
  u.payload->'usage' as usage,
  u.at as decided_at, u.seq, u.call::int as call, r.generation, r.tenant, u.run_id
from pgflow.unit u
join pgflow.run r on r.run_id = u.run_id
where u.kind = 'd';
comment on view pgflow.decisions is 'Decisions: each choice with its reasons, as it was recorded once';
--! grant decisions to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.decisions.key is 'Key of the run';
comment on column pgflow.decisions.decision is 'Its own key, which the keys of what rests on it begin with';
comment on column pgflow.decisions.name is 'Name of the decision';
comment on column pgflow.decisions.value is 'Value that was chosen';
comment on column pgflow.decisions.why is 'The reason given';
comment on column pgflow.decisions.evidence is 'Evidence that it rested on';
comment on column pgflow.decisions.alternatives is 'Alternatives to it';
comment on column pgflow.decisions.policy is 'The policy that it followed; null = none is named';
comment on column pgflow.decisions.model is 'The model that chose; null = none is named';
comment on column pgflow.decisions.usage is 'Cost of the choice; null = none was recorded';
comment on column pgflow.decisions.decided_at is 'Time of the choice';
comment on column pgflow.decisions.seq is 'Its place in the journal';
comment on column pgflow.decisions.call is 'Number of the call, in the order in which the code made them';
comment on column pgflow.decisions.generation is 'Generation of the run that decided';
comment on column pgflow.decisions.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.decisions.run_id is 'The number of that generation';

create view pgflow.effects as
select r.key, i.key::text as effect, i.name::text as name,
  case
    when f.outcome = 'C' then 'confirmed'
    when f.outcome = 'F' then 'failed'
    when f.outcome = 'A' and f.settled is not null then f.settled
    when f.outcome = 'A' and f.is_silent then 'unknown'
    when f.outcome = 'A' then 'accepted'
    when f.is_unknown then 'unknown'
    else 'intended'
  end as status,
  i.payload->>'risk' as risk, i.payload->'request' as request,
  case f.outcome when 'C' then f.payload when 'A' then f.said_value end as result,
    case when f.outcome = 'F' then f.payload end as error,
  case when f.outcome = 'A' then f.payload->>'ref' end as ref,
  f.attempts - case when i.payload->'origin' is null then 0 else 1 end as attempts, f.unknowns, f.said_by,
  i.payload->>'decision' as decision, i.payload->>'compensates' as compensates,
  (i.payload->>'policy')::int as policy_version, i.at as intended_at, f.closed_at, i.seq, i.call::int as call,
  -- The run's own number: by that of the intent no index would find it.
  r.generation, r.tenant, r.run_id,
  i.payload->'origin' as origin,
  (select o.detail->>'reason' from pgflow.owed o
    where o.run_id = i.run_id and o.call = i.call and o.kind = 'effect') as owed
from pgflow.run r
-- Folded run by run, so a query for one run reads that run's units only.
cross join lateral (
  select u.call, (array_agg(u order by u.seq) filter (where u.kind = 'i'))[1] as intent,
    (array_agg(u.kind order by u.seq desc) filter (where u.kind in ('C', 'F', 'A')))[1] as outcome,
    (array_agg(u.payload order by u.seq desc) filter (where u.kind in ('C', 'F', 'A')))[1] as payload,
    (array_agg(u.payload->>'verdict' order by u.seq desc) filter (where u.kind = 'E'
      and u.payload->>'verdict' <> 'absent'))[1] as settled,
    (array_agg(u.payload->'value' order by u.seq desc) filter (where u.kind = 'E'
      and u.payload->>'verdict' <> 'absent'))[1] as said_value,
    (array_agg(u.payload->>'by' order by u.seq desc) filter (where u.kind = 'E'))[1] as said_by,
    count(*) filter (where u.kind in ('i', 'j')) as attempts,
    count(*) filter (where u.kind = 'U') as unknowns,
    (array_agg(u.kind order by u.seq desc) filter (where u.kind in ('i', 'j', 'U')))[1] = 'U' as is_unknown,
    (array_agg(u.kind = 'U' and u.payload->>'reason' is distinct from 'accepted'
      order by u.seq desc) filter (where u.kind in ('A', 'U')))[1] as is_silent,
    max(u.at) filter (where u.kind in ('C', 'F') or u.kind = 'E' and u.payload->>'verdict' <> 'absent') as closed_at
  from pgflow.unit u
  where u.run_id = r.run_id and u.kind in ('i', 'j', 'U', 'C', 'F', 'A', 'E')
  group by u.call
  having bool_or(u.kind = 'i')
) f
cross join lateral (select (f.intent).*) i;
comment on view pgflow.effects
  is 'Effects: each act on the outside, its request, its tries, its outcome and who stated that';
--! grant effects to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.effects.key is 'Key of the run';
comment on column pgflow.effects.effect is 'Its idempotency key: the same in every attempt';
comment on column pgflow.effects.name is 'Name of the effect';
comment on column pgflow.effects.status is 'intended, unknown, accepted, confirmed or failed';
comment on column pgflow.effects.risk is 'Means by which it can be taken back: reversible, compensable, irreversible';
comment on column pgflow.effects.request is 'Its arguments, by name';
comment on column pgflow.effects.result
  is 'Value that it returned, or that came with its confirmation; null unless it is confirmed';
comment on column pgflow.effects.error is 'Reason why it was not done; null unless it failed';
comment on column pgflow.effects.ref is 'The counterparty''s reference under which it was accepted; null = it was not';
comment on column pgflow.effects.attempts is 'Number of times that it was allowed to act';
comment on column pgflow.effects.unknowns is 'Number of times that its outcome was unknown';
comment on column pgflow.effects.said_by
  is 'Last to state its outcome: settle, or the name of a person, with the role of the session in brackets; null = '
     'its own answer counted';
comment on column pgflow.effects.decision is 'Key of the decision that it rests on; null = none';
comment on column pgflow.effects.compensates is 'Key of the effect that it takes back; null = none';
comment on column pgflow.effects.policy_version is 'The policy in force when it was let through; null = there was none';
comment on column pgflow.effects.intended_at is 'Time at which its intent was recorded, before it acted';
comment on column pgflow.effects.closed_at is 'Time at which its outcome was known; null = it is open';
comment on column pgflow.effects.seq is 'Place of its intent in the journal';
comment on column pgflow.effects.call is 'Number of the call, in the order in which the code made them';
comment on column pgflow.effects.generation is 'Generation of the run that did it';
comment on column pgflow.effects.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.effects.run_id is 'The number of that generation';
comment on column pgflow.effects.origin
  is 'Place where it was done, if a run that was rewound or forked was handed its result: run_id and seq of the intent '
     'there; null = here';
comment on column pgflow.effects.owed
  is 'Reason why a person must handle it: forced (the run was ended by force) or parent_forced; null = none';

create view pgflow.obligations as
select r.key, o.kind, o.name, o.detail->>'state' as state, o.opened_at, o.due_at, o.owed_to,
  coalesce(o.detail->>'key', o.detail->>'gate') as effect,
  o.detail->>'ref' as ref, case o.kind when 'obligation' then o.detail->'detail' else o.detail end as detail, r.tenant,
  o.call, o.run_id, p.paged_at,
  o.detail->>'reason' as reason, b.beat_at, b.details as beat_details,
  b.beat_at + b.timeout_seconds * interval '1 second' as silent_at,
  o.detail->>'holder' as holder, coalesce((o.detail->>'outlives')::boolean, false) as outlives
from pgflow.owed o
join pgflow.run r on r.run_id = o.run_id
left join pgflow.effect_beat b on b.run_id = o.run_id and b.call = o.call and o.kind = 'effect'
left join pgflow.page p on p.run_id = o.run_id and p.call = o.call and p.kind = o.kind;
comment on view pgflow.obligations
  is 'Owed: effects that are not closed, obligations that are neither discharged nor waived, and what else is open';
--! grant obligations to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.obligations.key is 'Key of the run';
comment on column pgflow.obligations.kind is 'effect, gate or obligation';
comment on column pgflow.obligations.name is 'Of the effect, gate or obligation';
comment on column pgflow.obligations.state
  is 'Of an effect: intended, unknown, absent, accepted; or uncompensated: it was done and nothing will undo it. Of '
     'an obligation: open, or breached once it was due';
comment on column pgflow.obligations.opened_at is 'Since when it is owed';
comment on column pgflow.obligations.due_at
  is 'Time at which the engine looks after it next, or it should be closed; null = no time is set';
comment on column pgflow.obligations.owed_to is 'Name of the creditor; null = not given';
comment on column pgflow.obligations.effect
  is 'Key of the effect, gate or obligation: what settle_effect takes, answer_gate, and discharge';
comment on column pgflow.obligations.ref is 'The counterparty''s reference, for confirm_effect';
comment on column pgflow.obligations.detail
  is 'Notice for the person who closes it; of an obligation, the facts recorded by its code';
comment on column pgflow.obligations.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.obligations.call is 'Number of the call';
comment on column pgflow.obligations.run_id is 'The number of that generation';
comment on column pgflow.obligations.reason
  is 'Reason why a person must see to it: forced (its run was ended by force) or parent_forced (its run has completed, '
     'its parent was ended by force), failed or cancelled (its run ended so, and owes it still); null = its run does';
comment on column pgflow.obligations.beat_at
  is 'Time of the last beat of an accepted effect, or of its acceptance; null = it has promised none';
comment on column pgflow.obligations.beat_details is 'Details of the last beat that had any; null = none did';
comment on column pgflow.obligations.silent_at
  is 'Time from which its outcome is unknown if no further beat comes; null = it has promised none';
comment on column pgflow.obligations.holder
  is 'Whom it was transferred to, outside of the run; null = the run holds it';
comment on column pgflow.obligations.outlives is 'True if its run need not wait until it is closed';
comment on column pgflow.obligations.paged_at is 'Time of the last page about it (app.pager); null = none';

create view pgflow.provenance as
select d.key, d.decision, d.name as decided, d.why, d.evidence, d.decided_at, a.act, a.name, a.act_key, a.status,
  c.effect as compensated_by,
  c.status as compensation, d.tenant, d.run_id
from pgflow.decisions d
join pgflow.run r on r.run_id = d.run_id
left join lateral (
  select 'effect' as act, e.name, e.effect as act_key, e.status from pgflow.effects e
  where e.run_id = d.run_id and e.decision = d.decision
  union all
  select 'step', u.name::text, u.key::text, 'completed' from pgflow.unit u
  where u.run_id = d.run_id and u.kind in ('c', 'H') and starts_with(u.key, d.decision || '/')
) a on true
left join lateral (
  -- By a later generation, if the saga was carried there.
  select e.effect, e.status
  from pgflow.run g join pgflow.effects e on e.run_id = g.run_id
  where (g.run_id = r.chain_id or g.chain_id = r.chain_id and g.generation > 1) and g.generation >= r.generation
    and e.compensates = a.act_key
  order by g.generation desc limit 1
) c on true;
comment on view pgflow.provenance
  is 'From the facts to the act: evidence, decision, what rested on it, and what took that back';
--! grant provenance to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.provenance.key is 'Key of the run';
comment on column pgflow.provenance.decision is 'Key of the decision';
comment on column pgflow.provenance.decided is 'Name of the decision';
comment on column pgflow.provenance.why is 'The reason given';
comment on column pgflow.provenance.evidence is 'Evidence that it rested on';
comment on column pgflow.provenance.decided_at is 'Time of the decision';
comment on column pgflow.provenance.act is 'effect or step; null = nothing rested on it';
comment on column pgflow.provenance.name is 'Name of the effect or step';
comment on column pgflow.provenance.act_key is 'Its idempotency key';
comment on column pgflow.provenance.status is 'Status of the act';
comment on column pgflow.provenance.compensated_by is 'Key of the effect that took it back; null = none';
comment on column pgflow.provenance.compensation is 'Status of its compensation';
comment on column pgflow.provenance.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.provenance.run_id is 'The number of the generation';
