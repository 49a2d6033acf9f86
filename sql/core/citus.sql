-- Two-phase commits on a node of Citus.
--
-- Citus commits a transaction that wrote one remote shard, and apart from it only tables of this node, in one phase, and
-- the remote shard first. If the local COMMIT fails after that, the application's row is there and our unit is not: the
-- step runs again, and its row is there twice. A write to a shard that Citus keeps on this node makes it commit in two
-- phases, even a write of no row. So on such a node every statement that writes a table of ours touches an anchor, once
-- a transaction. Triggers do this, so that no function can forget it; on other servers there are none.
--
-- The anchor of the coordinator is a table of its own that Citus manages, that of another node a shard of a distributed
-- table. The coordinator makes both. A name in the text of the trigger's function would be looked up at each touch, for
-- milliseconds, so the function is made with the numbers of its shard. Its definer is the administrator who owns the
-- anchors: other nodes need not have the roles of pgflow, and Citus opens no connection for a shard of its own node.

create or replace function pgflow.make_anchors_()
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  before constant text := current_setting('citus.enable_ddl_propagation');
begin
  perform set_config('citus.enable_ddl_propagation', 'on', true);
  create schema if not exists pgflow_anchor;
  if to_regclass('pgflow_anchor.here') is null then
    create table pgflow_anchor.here (box int primary key);
    perform citus_add_local_table_to_metadata('pgflow_anchor.here'::regclass);
  end if;
  if to_regclass('pgflow_anchor.elsewhere') is null
     and exists (select from pg_dist_node n where n.shouldhaveshards and n.groupid <> 0 and n.noderole = 'primary') then
    create table pgflow_anchor.elsewhere (box int primary key);
    perform create_distributed_table('pgflow_anchor.elsewhere'::regclass, 'box', colocate_with => 'none');
  end if;
  perform set_config('citus.enable_ddl_propagation', before, true);
end
$$;
comment on function pgflow.make_anchors_() is 'Makes the tables whose shards are touched, on the coordinator of Citus';

create or replace function pgflow.find_anchor_(out anchor text, out box int, out shard bigint, out node int)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  select l.groupid into node from pg_dist_local_group l;
  if node = 0 then
    anchor := 'pgflow_anchor.here';
    box := 0;
    select s.shardid into shard from pg_dist_shard s where s.logicalrelid = to_regclass(anchor);
  elsif to_regclass('pgflow_anchor.elsewhere') is not null then
    anchor := 'pgflow_anchor.elsewhere';
    select b.box, p.shardid into box, shard
    from (
      select g.box, get_shard_id_for_distribution_column(anchor::regclass, g.box) as shard
      from generate_series(1, 4096) g (box)
    ) b
    join pg_dist_placement p on p.shardid = b.shard and p.groupid = node
    order by p.shardid, b.box limit 1;
  end if;
end
$$;
comment on function pgflow.find_anchor_() is 'A shard of an anchor that lies on this node, and a key of it; null if there is none';

create or replace function pgflow.join_citus_()
returns text
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  found record;
  body text;
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
    perform pgflow.make_anchors_();
  end if;
  select * into found from pgflow.find_anchor_();
  if found.shard is null then
    raise exception using message = format('no shard of pgflow''s anchor lies on this node of Citus (group %s)', found.node),
      hint = 'Run pgflow migrate on the coordinator first. If it did: let the node have shards'
        ' (citus_set_node_property), and rebalance pgflow_anchor.elsewhere.';
  end if;
  body := format($body$
    begin
      if coalesce(current_setting('pgflow.two_phase', true), '') <> 'on' then
        if not exists (select from pg_dist_placement p where p.shardid = %1$s and p.groupid = %2$s) then
          raise exception using errcode = '55000',
            message = 'pgflow''s anchor has left this node of Citus: its transactions cannot be atomic',
            hint = 'Run pgflow migrate on this node.';
        end if;
        delete from %3$s where box = %4$s;
        perform set_config('pgflow.two_phase', 'on', true);
      end if;
      return null;
    end
  $body$, found.shard, found.node, found.anchor, found.box);
  execute format('create or replace function pgflow_anchor.touch() returns trigger language plpgsql volatile '
    'security definer set search_path = pg_catalog, pg_temp set jit = off as %L', body);
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
