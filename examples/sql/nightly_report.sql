-- A child for each customer. Each calls a service with an event of the outbox, and waits for the signal with the answer.
create table if not exists customers (id int primary key, active boolean not null default true);
create table if not exists sales (customer int, day date, amount int);
create table if not exists report (customer_id int, day date, total int, primary key (customer_id, day));

select pgflow.create_workflow('customer_report(customer_id int, day date)', $$
declare
  total int;
begin
  count_up:
    select coalesce(sum(s.amount), 0) into total from sales s
    where s.customer = customer_report.customer_id and s.day = customer_report.day;
    insert into report values (customer_report.customer_id, customer_report.day, total);
    perform pgflow.publish('reports', json_build_object('run', run->>'key', 'customer', customer_report.customer_id,
      'total', total));
  wait for delivered timeout '1 hour';
  if timed_out then
    give_up: raise exception 'nobody has taken the report of customer %', customer_report.customer_id;
  end if;
  return total;
end $$);

select pgflow.create_workflow('nightly_report(day date)', $$
declare
  totals jsonb;
begin
  for each c in select id from customers where active order by id
    run customer_report(customer_id => c.id, day => day) at most 20 into totals on failure continue;
  return totals;
end $$);
