-- Start an order, answer its gate, signal its payment, and read its result:
-- psql -v ON_ERROR_STOP=1 -v order=order-1 -f order.sql "$PGFLOW_DSN"

\set QUIET on
\pset tuples_only on
\pset format unaligned

-- A second start with the same key is the same run.
select is_new, 'started ' || run_key || case when is_new then '' else ' before' end as started
from pgflow.start_run(
  workflow => 'fulfil', key => :'order', input => json_build_object('order_id', :'order', 'cents', 25000)
) \gset
\echo :started

select set_config('shop.order', :'order', false) \g /dev/null

\if :is_new
-- A worker brings the run to its gate. (A program of yours would show the gate to a person.)
do $$
begin
  while not exists (select from pgflow.gates where key = current_setting('shop.order')) loop
    perform pg_sleep(0.1);
  end loop;
end $$;

-- The hash binds the answer to the request that was shown.
select 'approved ' || name || ' of ' || (request->>'cents') || ' cents' from (
  select g.name, g.request, pgflow.answer_gate(gate => g.gate, verdict => 'approve', payload_hash => g.payload_hash)
  from pgflow.gates g where g.key = :'order'
) answered;

select pgflow.send_signal(key => :'order', name => 'paid', payload => '{"by": "card"}') \g /dev/null
\endif

do $$
begin
  while pgflow.run_status(key => current_setting('shop.order')) not in ('completed', 'failed', 'cancelled') loop
    perform pg_sleep(0.1);
  end loop;
end $$;

select status || ': ' || (output #>> '{}') from pgflow.result(key => :'order');
