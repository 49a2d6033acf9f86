-- Waits for a person, reminds once, and gives up.
create table if not exists invoice (id int primary key, state text);

select pgflow.create_workflow('approve_invoice(invoice_id int)', $$
declare
  decision jsonb;
begin
  opened: insert into invoice values (invoice_id, 'open');
  for i in 1 .. 2 loop
    wait for decision timeout '2 days' into decision;
    exit when not timed_out;
    remind: perform pgflow.publish('mail', json_build_object('invoice', invoice_id, 'reminder', i));
  end loop;
  closed:
    update invoice set state = case when timed_out then 'expired' when (decision->>'ok')::boolean then 'approved'
      else 'rejected' end
    where id = invoice_id;
  return decision->>'by';
end $$);
