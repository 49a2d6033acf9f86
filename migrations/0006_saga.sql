-- Sagas over generations: what a run that continued as new had done, and the next one takes back if it fails.

create table pgflow.saga_effect (
  chain_id bigint not null,
  generation int not null check (generation >= 0),
  call int not null,
  n int not null default 1,
  taken_back_in int,
  name text not null check (octet_length(name) <= 255),
  key text not null check (octet_length(key) <= 255),
  code text not null check (octet_length(code) <= 1024),
  request json not null,
  result json,
  ref text,
  primary key (chain_id, generation, key)
);
comment on table pgflow.saga_effect is 'Effects that a generation handed on when it continued as new: a later one takes them back if it fails';

update pgflow.unit_kind set written_by = 'commit_units: there was nothing to take back, since what had been accepted was not done' where kind = 'R';
