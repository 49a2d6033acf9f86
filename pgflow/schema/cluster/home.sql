-- The tables that the nodes of a cluster share, on its first node. A claim gives a key to a node, whether a run of it exists or
-- not: so a claim whose run was rolled back does no harm, and no claim needs a commit in two phases.

create schema if not exists pgflow_cluster;

create table if not exists pgflow_cluster.node (
  node int primary key check (node >= 0),
  host text not null,
  port text not null,
  dbname text not null,
  state text not null default 'open' check (state in ('open', 'closed')),
  joined_at timestamptz not null default clock_timestamp()
);
comment on table pgflow_cluster.node is 'Nodes of the cluster; a closed one gets no new keys';

create table if not exists pgflow_cluster.key (
  tenant text not null,
  key text not null,
  node int not null,
  at timestamptz not null default clock_timestamp(),
  primary key (tenant, key)
);
create index if not exists key_node_at on pgflow_cluster.key (node, at);
comment on table pgflow_cluster.key is
  'Directory: the node that the runs of a key are on; at = when that was last seen';
