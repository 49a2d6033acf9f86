-- The installer's own tables: the migrations and files of functions that were applied to this database.

comment on column pgflow.migration.number is 'The four digits that the name of the file starts with';
comment on column pgflow.migration.name is 'Name of the file below migrations/, without its suffix';
comment on column pgflow.migration.sha256
  is 'Hash of the text that was applied; another text under this name is refused';
comment on column pgflow.migration.applied_at is 'Time at which it was applied';

comment on column pgflow.source.name is 'Name of the file below sql/, without its suffix';
comment on column pgflow.source.sha256 is 'Hash of the text that was applied last; another text is applied again';
comment on column pgflow.source.applied_at is 'Time at which it was last applied';
