-- The proofs. Each is one query of one row: a figure that says how much was looked at, and an array of what
-- is wrong, empty if nothing is. `treasury.bank_book` holds the bank's book as its file says it now; the
-- other side is the ledger, and the journal of the runs in the views of the schema `pgflow`.
--
-- All tables are small, so that every query may join whole books by what an entry means: nothing here rests
-- on a constraint that would have prevented the fault it looks for.

-- proof: every business day is closed exactly once, in order
with due as (
  select distinct day from treasury.bank_book where type = 'flow'
), closed as (
  select day, count(*) as reports from treasury.report group by day
)
select
  (select format('%s days, %s to %s', count(*), min(day), max(day)) from due),
  array(
    select format('%s has %s reports', day, coalesce(c.reports, 0))
    from due d full join closed c using (day)
    where d.day is null or c.reports is distinct from 1
    union all
    select format('%s was closed after %s', day, earlier)
    from (select day, lag(day) over (order by report_id) as earlier from treasury.report) r
    where earlier >= day
  );

-- proof: every run is completed, and each is one day's
with run as (
  select key, status, labels->>'day' as day from pgflow.runs where labels->>'books' = (select name from treasury.books)
), due as (
  select distinct day::text as day from treasury.bank_book where type = 'flow'
)
select
  (select format('%s runs', count(*)) from run),
  array(
    select format('%s is %s', key, status) from run where status <> 'completed'
    union all
    select format('%s has %s runs', day, count(r.key))
    from due d full join run r using (day)
    group by day, d.day having count(r.key) <> 1 or d.day is null
    union all
    select format('the report of %s was written by %s', p.day, p.run_key)
    from treasury.report p left join run r on r.key = p.run_key and r.day = p.day::text
    where r.key is null
  );

-- proof: sweeps agree to the cent, each day and currency
with bank as (
  select day, currency, sum(cents) as cents from treasury.bank_book where type = 'instruction' and kind = 'sweep' group by day, currency
), ledger as (
  select day, currency, sum(debit - credit) as cents
  from treasury.gl_entry where kind = 'sweep' and account like 'bank:%' group by day, currency
)
select
  (select format('%s sums', count(*)) from bank),
  array(
    select format('%s %s: bank %s, ledger %s', day, currency, coalesce(b.cents, 0), coalesce(l.cents, 0))
    from bank b full join ledger l using (day, currency)
    where coalesce(b.cents, 0) <> coalesce(l.cents, 0)
  );

-- proof: hedges agree to the cent, each day, position and currency
with bank as (
  select day, account, currency, sum(cents) as cents
  from treasury.bank_book where type = 'instruction' and kind like 'hedge-%' group by day, account, currency
), ledger as (
  select day, account, currency, sum(debit - credit) as cents
  from treasury.gl_entry where kind like 'hedge-%' and account like 'forward-%' group by day, account, currency
)
select
  (select format('%s sums', count(*)) from bank),
  array(
    select format('%s %s %s: bank %s, ledger %s', day, account, currency, coalesce(b.cents, 0), coalesce(l.cents, 0))
    from bank b full join ledger l using (day, account, currency)
    where coalesce(b.cents, 0) <> coalesce(l.cents, 0)
  );

-- proof: receipts and payments agree to the cent, each day and account
with bank as (
  select day, kind, 'bank:' || account as account, sum(cents) as cents from treasury.bank_book where type = 'flow' group by 1, 2, 3
), ledger as (
  select day, kind, account, sum(debit - credit) as cents
  from treasury.gl_entry where kind in ('receipts', 'payments') and account like 'bank:%' group by 1, 2, 3
)
select
  (select format('%s sums', count(*)) from bank),
  array(
    select format('%s of %s on %s: bank %s, ledger %s', kind, account, day, coalesce(b.cents, 0), coalesce(l.cents, 0))
    from bank b full join ledger l using (day, kind, account)
    where coalesce(b.cents, 0) <> coalesce(l.cents, 0)
  );

-- proof: every instruction stands in both books, one to one by the bank's reference
with bank as (
  select reference, day, kind, cents from treasury.bank_book where type = 'instruction'
), ledger as (
  select reference, day, kind, debit - credit as cents
  from treasury.gl_entry where reference is not null and (account like 'bank:%' or account like 'forward-%')
)
select
  (select format('%s instructions', count(*)) from bank),
  array(
    select format('%s: bank %s %s %s, ledger %s %s %s', reference, b.day, b.kind, b.cents, l.day, l.kind, l.cents)
    from bank b full join ledger l using (reference)
    where (b.day, b.kind, b.cents) is distinct from (l.day, l.kind, l.cents)
    union all
    select format('%s stands %s times in the bank''s book', reference, count(*)) from bank group by reference having count(*) > 1
    union all
    select format('%s stands %s times in the ledger', reference, count(*)) from ledger group by reference having count(*) > 1
  );

-- proof: nothing was done twice: one instruction and one posting a day, kind and account
select
  (select format('%s instructions, %s entries', (select count(*) from treasury.bank_book where type = 'instruction'), count(*)) from treasury.gl_entry),
  array(
    select format('the bank executed %s times: %s of %s in %s on %s', count(*), kind, account, currency, day)
    from treasury.bank_book where type = 'instruction'
    group by day, kind, account, currency having count(*) > 1
    union all
    select format('the ledger holds %s times: %s of %s in %s on %s', count(*), kind, account, currency, day)
    from treasury.gl_entry
    group by day, kind, account, currency having count(*) > 1
    union all
    select format('the flows of %s on %s stand %s times in the bank''s book', account, day, count(*))
    from treasury.bank_book where type = 'flow'
    group by day, kind, account having count(*) > 1
    union all
    select format('%s has %s balances on %s', account, count(*), day)
    from treasury.balance
    group by day, account having count(*) > 1
  );

-- proof: no key was used twice, or with other content
select
  (select format('%s keys', count(distinct key)) from treasury.bank_book where type = 'instruction'),
  array(
    select format('%s was executed %s times', key, count(*)) from treasury.bank_book where type = 'instruction' group by key having count(*) > 1
    union all
    select format('%s came back with other content', key) from treasury.bank_book where type = 'conflict'
  );

-- proof: every instruction is one completed step of one run, under that step's key and as the journal has it
with bank as (
  select key, reference, cents from treasury.bank_book where type = 'instruction'
), step as (
  select s.idempotency_key as key, s.key as run, s.output->>'reference' as reference, (s.output->'order'->>'cents')::bigint as cents
  from pgflow.steps s join pgflow.runs r on r.run_id = s.run_id
  where r.labels->>'books' = (select name from treasury.books) and s.step in ('sweep', 'trade') and s.status = 'completed'
)
select
  (select format('%s steps', count(*)) from step),
  array(
    select format('%s of run %s: bank %s %s, journal %s %s', key, s.run, b.reference, b.cents, s.reference, s.cents)
    from bank b full join step s using (key)
    where (b.reference, b.cents) is distinct from (s.reference, s.cents)
  );

-- proof: debits equal credits, in each posting and in each currency
select
  (select format('%s postings', count(distinct (day, posting))) from treasury.gl_entry),
  array(
    select format('posting %s of %s: debits %s, credits %s', posting, day, sum(debit), sum(credit))
    from treasury.gl_entry group by day, posting having sum(debit) <> sum(credit) or count(*) <> 2
    union all
    select format('%s: debits %s, credits %s', currency, sum(debit), sum(credit))
    from treasury.gl_entry group by currency having sum(debit) <> sum(credit)
  );

-- proof: balances roll forward: opening + flows + sweeps = closing, as the bank's book has it
with account as (
  select account, cents from treasury.bank_book where type = 'account'
), day as (
  select distinct day from treasury.bank_book where type = 'flow'
), flow as (
  select day, account, sum(cents) as cents from treasury.bank_book where type = 'flow' group by day, account
), swept as (
  select day, account, cents from treasury.bank_book where type = 'instruction' and kind = 'sweep'
  union all
  select day, counterparty, -cents from treasury.bank_book where type = 'instruction' and kind = 'sweep'
), moved as (
  select d.day, a.account, a.cents as first_opening,
    coalesce((select f.cents from flow f where f.day = d.day and f.account = a.account), 0)::bigint as flows,
    coalesce((select sum(s.cents) from swept s where s.day = d.day and s.account = a.account), 0)::bigint as sweeps
  from day d cross join account a
), rolled as (
  select day, account, flows, sweeps, (first_opening + sum(flows + sweeps) over (partition by account order by day))::bigint as closing
  from moved
), bank as (
  select day, account, closing - flows - sweeps as opening, flows, sweeps, closing from rolled
)
select
  (select format('%s accounts over %s days', count(distinct account), count(distinct day)) from bank),
  array(
    select format('%s on %s: bank %s + %s + %s = %s, ledger %s + %s + %s = %s', account, day,
      b.opening, b.flows, b.sweeps, b.closing, l.opening, l.flows, l.sweeps, l.closing)
    from bank b full join treasury.balance l using (day, account)
    where (b.opening, b.flows, b.sweeps, b.closing) is distinct from (l.opening, l.flows, l.sweeps, l.closing)
  );

-- proof: every operating account closes every day on its target
with target as (
  select account, cents from treasury.bank_book where type = 'account' and account not like 'fund-%'
), closed as (
  select b.day, b.account, b.closing from treasury.balance b where b.account not like 'fund-%'
)
select
  (select format('%s closings', count(*)) from closed),
  array(
    select format('%s closed %s on %s, its target is %s', account, c.closing, c.day, t.cents)
    from closed c left join target t using (account)
    where c.closing is distinct from t.cents
  );

-- proof: of every hedge both legs stand, or neither
with hedge as (
  select day, account, array_agg(kind order by kind) as legs, sum(cents) filter (where kind <> 'hedge-take') as given
  from treasury.bank_book where type = 'instruction' and kind like 'hedge-%' group by day, account
)
select
  (select format('%s hedges, %s of them taken back', count(*), count(*) filter (where 'hedge-reversal' = any(legs))) from hedge),
  array(
    select format('%s on %s has legs %s', account, day, legs)
    from hedge
    where not (legs = '{hedge-give,hedge-take}' or legs = '{hedge-give,hedge-reversal}' and given = 0)
  );

-- proof: what the policy asks about was acknowledged before anything was swept
with run as (
  select run_id, key from pgflow.runs where labels->>'books' = (select name from treasury.books)
), asked as (
  select key, max(t.seq) filter (where t.event = 'state_set') as asked,
    max(t.seq) filter (where t.event = 'signal_received' and t.name = 'cfo-ack') as acknowledged,
    min(t.seq) filter (where t.event = 'step_completed' and t.name = 'sweep') as swept
  from run r join pgflow.timeline t using (run_id, key) group by key
)
select
  (select format('%s days', count(asked)) from asked),
  array(
    select format('%s: asked at %s, acknowledged at %s, swept at %s', a.key, a.asked, a.acknowledged, a.swept)
    from asked a
    where not coalesce(a.asked < a.acknowledged and a.acknowledged < a.swept, num_nulls(a.asked, a.acknowledged) = 2)
    union all
    select format('the report of %s says: acknowledged by %s', p.day, coalesce(p.acknowledged_by, 'nobody'))
    from treasury.report p join asked a on a.key = p.run_key
    where (p.acknowledged_by is null) <> (a.acknowledged is null)
  );

-- proof: the ratio was filed on the day's own closing balances
with day as (
  select day, sum(round(closing / euros_buy)) as liquid from treasury.balance group by day
)
select
  (select format('%s ratios from %s to %s', count(*), min(liquidity_ratio), max(liquidity_ratio)) from treasury.report),
  array(
    select format('%s: filed on %s euro cents, the balances are worth %s', r.day, r.liquid_euro_cents, d.liquid)
    from treasury.report r left join day d using (day)
    where r.liquid_euro_cents is distinct from d.liquid
  );

-- proof: select * from pgflow.check() is empty
select
  (select format('%s units in %s runs', count(*), count(distinct run_id)) from pgflow.timeline),
  array(select format('%s: %s', invariant, detail) from pgflow.check());
