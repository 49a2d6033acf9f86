-- A saga: if a later step fails or the run is cancelled, compensations run, the last step's first.
create table if not exists account (id int primary key, balance int not null check (balance >= 0));
create table if not exists booking (transfer text, account int, amount int);
create table if not exists notice (transfer text, said text);

select pgflow.create_workflow('transfer(source int, target int, amount int)', $$
begin
  debit:
    update account set balance = balance - amount where id = source;
    insert into booking values (run->>'key', source, -amount);
  undo debit: begin
    update account set balance = balance + amount where id = source;
    insert into booking values (run->>'key', source, amount);
  end;

  credit:
    update account set balance = balance + transfer.amount where id = target;
    if not found then
      raise exception 'there is no account %', target;
    end if;
    insert into booking values (run->>'key', target, amount);
  undo credit: begin
    update account set balance = balance - amount where id = target;
    insert into booking values (run->>'key', target, -amount);
  end;

  tell: insert into notice values (run->>'key', 'done');
  return 'done';
exception
  explain: insert into notice values (run->>'key', error->>'message');
  return 'not done';
end $$);
