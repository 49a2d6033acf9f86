-- What it takes to change code under runs that are open: histories that came from another database.

create table pgflow.imported (
  run_id bigint primary key,
  imported_at timestamptz not null,
  generation int not null,
  root uuid not null,
  status text not null,
  imported_by text not null,
  origin jsonb not null,
  unique (root, generation)
);
comment on table pgflow.imported is 'Runs whose history was recorded in another database. They have an outcome and so can never be claimed';

create table pgflow.code (
  code_id int generated always as identity primary key,
  first_at timestamptz not null,
  last_at timestamptz not null,
  is_pinned boolean not null,
  workflow text not null check (octet_length(workflow) between 1 and 255),
  version text not null check (octet_length(version) between 1 and 255),
  code_hash text not null check (octet_length(code_hash) between 1 and 255),
  alias_of text check (octet_length(alias_of) between 1 and 255),
  unique (workflow, version, code_hash)
);
comment on table pgflow.code is 'What code workers have had of each workflow, and when: written by workers as they come and go, never by a run';

create table pgflow.worker_code (
  worker_id int not null,
  code_id int not null,
  primary key (worker_id, code_id)
);
comment on table pgflow.worker_code is 'What code the workers have that count as alive';

create table pgflow.code_patch (
  code_id int not null,
  is_deprecated boolean not null,
  patch text not null check (octet_length(patch) between 1 and 255),
  primary key (code_id, patch)
);
comment on table pgflow.code_patch is 'Which patches are written in that code';
