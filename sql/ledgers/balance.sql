-- The trial balance: what was opened in a ledger is what was closed and what is open, for each run and in total.
--
-- Opened and closed are counted from the journal, and open from `owed`: two ledgers that are kept by different
-- statements. `check_effects_` compares them call by call; a sum catches what no call explains, such as an effect that
-- was closed twice or a debt of no run. A further ledger is a further function like `balance_effects_`, in the union.
--
-- The other ledgers are judged beside their rows. That pools have admitted what was charged, returned and is reserved
-- says `check_budgets_`, by pool, period and unit; that gates asked are answered, expired, given up or open says
-- `check_gates_`; and that obligations opened are closed or owed says `check_obligations_`.

create or replace function pgflow.balance_effects_()
returns table (
  run_id bigint, opened bigint, confirmed bigint, failed bigint, unknown bigint, accepted bigint, open bigint
)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(j.run_id, w.run_id), coalesce(j.opened, 0), coalesce(j.confirmed, 0), coalesce(j.failed, 0),
    coalesce(w.unknown, 0), coalesce(w.accepted, 0), coalesce(w.open, 0)
  from (
    select u.run_id, count(*) filter (where u.kind = 'i') as opened,
      count(*) filter (where u.kind = 'C' or u.kind = 'E' and u.was_accepted and u.verdict = 'confirmed') as confirmed,
      count(*) filter (where u.kind = 'F' and u.was_intended
        or u.kind = 'E' and u.was_accepted and u.verdict <> 'confirmed') as failed
    from (
      select e.run_id, e.kind, e.payload->>'verdict' as verdict,
        e.seq > min(e.seq) filter (where e.kind = 'A') over same_call as was_accepted,
        -- One that was refused before it was let through has failed without an intent.
        bool_or(e.kind = 'i') over same_call as was_intended,
        -- What another run has taken over counts there: its end may be here and there, or nowhere here.
        bool_or(e.kind = 'i' and pgflow.is_handed_on_(e.run_id, e.seq)) over same_call as is_elsewhere
      from pgflow.unit e
      where e.kind in ('i', 'A', 'C', 'F', 'E')
        and not exists (select from pgflow.imported m where m.run_id = e.run_id)
      window same_call as (partition by e.run_id, e.call)
    ) u
    where not u.is_elsewhere
    group by u.run_id
  ) j
  full join (
    select o.run_id, count(*) filter (where o.detail->>'state' = 'unknown') as unknown,
      count(*) filter (where o.detail->>'state' = 'accepted') as accepted,
      count(*) filter (where coalesce(o.detail->>'state', '') not in ('unknown', 'accepted')) as open
    from pgflow.owed o
    where o.kind = 'effect' and o.detail->>'state' is distinct from 'uncompensated'
    group by o.run_id
  ) w on w.run_id = j.run_id
$$;
comment on function pgflow.balance_effects_() is 'Effects of each run: the number intended, and the state of each';

create or replace function pgflow.trial_balance()
returns table (
  ledger text, opened bigint, confirmed bigint, failed bigint, unknown bigint, accepted bigint, open bigint
)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select 'effects', coalesce(sum(b.opened), 0)::bigint, coalesce(sum(b.confirmed), 0)::bigint,
    coalesce(sum(b.failed), 0)::bigint, coalesce(sum(b.unknown), 0)::bigint, coalesce(sum(b.accepted), 0)::bigint,
    coalesce(sum(b.open), 0)::bigint
  from pgflow.balance_effects_() b
$$;
comment on function pgflow.trial_balance()
  is 'The trial balance of the ledgers: what was opened is the sum of the rest. It reads the whole journal';
--! grant trial_balance to pgflow_operator, pgflow_auditor

create or replace function pgflow.check_balance_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'effects balance', format('run %s intended %s effects: %s confirmed, %s failed, %s unknown, %s accepted, '
    '%s open', b.run_id, b.opened, b.confirmed, b.failed, b.unknown, b.accepted, b.open)
  from pgflow.balance_effects_() b
  where b.opened <> b.confirmed + b.failed + b.unknown + b.accepted + b.open
  union all
  select 'effects balance in total', format('%s were intended, and %s are accounted for', b.opened,
    b.confirmed + b.failed + b.unknown + b.accepted + b.open)
  from pgflow.trial_balance() b
  where b.ledger = 'effects' and b.opened <> b.confirmed + b.failed + b.unknown + b.accepted + b.open;
end
$$;
comment on function pgflow.check_balance_()
  is 'All that was opened in each ledger is closed or open, for each run and in total';
