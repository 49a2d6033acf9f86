-- Two-phase commits on a node of Citus.
--
-- Citus commits a transaction that wrote one remote shard, and apart from it only tables of this node, in one phase, and
-- the remote shard first. If the local COMMIT fails after that, the application's row is there and our unit is not: the
-- step runs again, and its row is there twice. A copy into a distributed table makes it commit in two phases, even a copy
-- of no row, which asks no other node. So on a node of Citus every statement that writes a table of ours copies nothing
-- into the anchor, once a transaction, wherever the shards of that are. Triggers do this, so that no function can forget
-- it; on other servers there are none.
--
-- The coordinator makes the anchor. Two shards suffice: a copy locks each of them against a move. The definer of the
-- trigger's function is the administrator who owns it: other nodes need not have the roles of pgflow.

create or replace function pgflow.make_anchor_()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  before constant text := current_setting('citus.enable_ddl_propagation');
  is_alone constant boolean := not exists (select from pg_dist_node n where n.shouldhaveshards);
  here constant record := (select n from pg_dist_node n where n.groupid = 0 and n.noderole = 'primary');
begin
  if to_regclass('pgflow_anchor.anchor') is not null then
    return;
  end if;
  perform set_config('citus.enable_ddl_propagation', 'on', true);
  create schema if not exists pgflow_anchor;
  create table pgflow_anchor.anchor (box int primary key);
  if is_alone then -- a first other node may come at any time
    perform citus_set_node_property(here.nodename, here.nodeport, 'shouldhaveshards', true);
  end if;
  perform create_distributed_table('pgflow_anchor.anchor'::regclass, 'box', colocate_with => 'none', shard_count => 2);
  if is_alone then
    perform citus_set_node_property(here.nodename, here.nodeport, 'shouldhaveshards', false);
  end if;
  perform set_config('citus.enable_ddl_propagation', before, true);
end
$$;
comment on function pgflow.make_anchor_() is 'Makes the table into which nothing is copied, on the coordinator of Citus';

create or replace function pgflow.join_citus_()
returns text
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  guarded regclass;
begin
  if not exists (select from pg_extension e where e.extname = 'citus') then
    return 'plain';
  end if;
  if not exists (select from pg_dist_node) then
    return 'alone';
  end if;
  if not exists (select from pg_dist_node n where n.groupid = 0) then
    raise exception using message = 'the coordinator of Citus is not in its own list of nodes, so steps on remote shards cannot be atomic',
      hint = 'On the coordinator: select citus_set_coordinator_host(''HOST'', PORT), then run pgflow migrate again.';
  end if;
  if (select l.groupid from pg_dist_local_group l) = 0 then
    perform pgflow.make_anchor_();
  end if;
  if to_regclass('pgflow_anchor.anchor') is null then
    raise exception using message = 'the coordinator of Citus has not made pgflow''s anchor',
      hint = 'Run pgflow migrate on the coordinator first.';
  end if;
  create or replace function pgflow_anchor.touch() returns trigger language plpgsql volatile
    security definer set search_path = pg_catalog, pg_temp set jit = off as $body$
    begin
      if coalesce(current_setting('pgflow.two_phase', true), '') <> 'on' then
        insert into pgflow_anchor.anchor (box) select g.box from generate_series(1, 0) g (box);
        perform set_config('pgflow.two_phase', 'on', true);
      end if;
      return null;
    end
  $body$;
  revoke execute on function pgflow_anchor.touch() from public;
  for guarded in
    select c.oid from pg_class c
    where c.relnamespace = 'pgflow'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
      and not exists (select from pg_trigger t where t.tgrelid = c.oid and t.tgname = 'two_phase')
    order by c.oid
  loop
    execute format('create trigger two_phase before insert or update or delete on %s'
      ' for each statement execute '
      'function pgflow_anchor.touch()', guarded);
    execute format('alter table %s enable always trigger two_phase', guarded);
  end loop;
  return 'citus';
end
$$;
comment on function pgflow.join_citus_()
  is 'Makes each transaction that writes pgflow''s tables commit in two phases, on a node of Citus; pgflow migrate calls'
  ' it. Returns ''citus'', ''alone'' (no nodes yet) or ''plain''; raises PF006 if that cannot be done';
