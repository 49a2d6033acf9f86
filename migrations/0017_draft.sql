-- What bodies of steps emit while they run: readers may have it at once, and it counts only once the step has completed.
-- Unlogged, since it may be lost at any time: what completed steps emitted is in the journal.

create unlogged table pgflow.draft (
  run_id bigint not null,
  call int not null,
  n int not null,
  after_seq int not null,
  try text not null check (octet_length(try) <= 64),
  stream text not null check (octet_length(stream) between 1 and 255),
  value pgflow.run_value not null,
  primary key (run_id, call, n)
);
comment on table pgflow.draft is 'Values that bodies of steps have emitted and whose steps have not completed; gone with the next try, the next step that emits, or the run';
comment on column pgflow.draft.run_id is 'The run whose step emits';
comment on column pgflow.draft.call is 'Number of the step''s call';
comment on column pgflow.draft.n is 'Which value of this try it is, from 0';
comment on column pgflow.draft.after_seq is 'The last unit of the run when it was emitted: a later one of the same call ends the try, and this value with it';
comment on column pgflow.draft.try is 'Which try it is of';
comment on column pgflow.draft.stream is 'Name of the stream';
comment on column pgflow.draft.value is 'The value';
