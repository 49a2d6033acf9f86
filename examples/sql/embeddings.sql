-- Rows in batches through a service: an event asks for a batch, a signal brings the vectors, and a sleep keeps the rate.
create table if not exists document (id int primary key, body text, vector real[]);

select pgflow.create_workflow('embed(batch int = 100, pause interval = ''1 s'')', $$
declare
  ids int[];
  vectors jsonb;
begin
  loop
    choose:
      ids := array(select d.id from document d where d.vector is null order by d.id limit batch);
      if ids <> '{}' then
        perform pgflow.publish('embed', json_build_object('run', run->>'key', 'ids', ids));
      end if;
    exit when ids = '{}';
    wait for vectors timeout '10 minutes' into vectors;
    if timed_out then
      give_up: raise exception 'no vectors for % documents', cardinality(ids);
    end if;
    keep:
      update document d set vector = array(select x::real from jsonb_array_elements_text(v.value) x)
      from jsonb_each(vectors) v where d.id = v.key::int;
    sleep pause;
  end loop;
end $$);
