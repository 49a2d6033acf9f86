-- Moves rows in batches: a crash loses no batch and moves none twice.
create table if not exists staging (id int primary key, payload text);
create table if not exists events (id int primary key, payload text);

select pgflow.create_workflow('load_events(batch int = 1000)', $$
declare
  n int;
  total int := 0;
begin
  loop
    move retry 5 every '2 s':
      with moved as (
        delete from staging where id in (select id from staging order by id limit batch) returning *
      )
      insert into events select * from moved;
      get diagnostics n = row_count;
      total := total + n;
    exit when n < batch;
  end loop;
  return total;
end $$);
