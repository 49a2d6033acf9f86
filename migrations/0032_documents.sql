-- Documents: values under paths, which others keep here for their own purposes. sql/coordination/documents.sql says how.
--
-- A database without documents has no row in this table.

create table pgflow.document (
  created_at timestamptz not null,
  updated_at timestamptz not null,
  expires_at timestamptz,
  ttl_ms bigint check (ttl_ms > 0),
  collection text collate "C" not null check (octet_length(collection) between 1 and 100),
  path text[] collate "C" not null check (cardinality(path) between 1 and 50 and array_position(path, null) is null),
  value json not null,
  primary key (collection, path),
  check ((ttl_ms is null) = (expires_at is null))
);
create index document_expires_idx on pgflow.document (expires_at) where expires_at is not null;
comment on table pgflow.document is 'Values under paths: what integrations and applications keep beside their runs';
comment on column pgflow.document.created_at is 'Time at which the path was written first';
comment on column pgflow.document.updated_at is 'Time of the last write';
comment on column pgflow.document.expires_at is 'Time from which nobody sees it any more; null = never';
comment on column pgflow.document.ttl_ms is 'Milliseconds from a write, or a read that says so, to that time';
comment on column pgflow.document.collection is 'Name of the collection';
comment on column pgflow.document.path is 'Names of folders, the outermost first, and a name in the last one';
comment on column pgflow.document.value is 'Value, as the encoder wrote it';
