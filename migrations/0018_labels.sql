-- Labels that a run changes. `run.labels` are those that it has now, which are looked for; what it was started with is kept
-- beside, since a replay begins with it.

create table pgflow.relabelled (
  run_id bigint primary key,
  labels pgflow.run_object
);
comment on table pgflow.relabelled is 'Runs that have changed their labels, with those that they were started with';
comment on column pgflow.relabelled.run_id is 'The run';
comment on column pgflow.relabelled.labels is 'Its labels when it was started; null = none';
comment on table pgflow.run is 'One execution of a workflow; insert only, but for labels that it changes. A chain is a run and the generations that continued it';

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values ('y', 'labels_set', true, 'commit_units, fence_step: set_labels()');

-- Not valid: the journal may be large, and what is in it has been checked by a narrower list.
-- squawk-ignore ban-drop-constraint
alter domain pgflow.unit_letter drop constraint unit_letter_check;
-- squawk-ignore ban-alter-domain-with-add-constraint
alter domain pgflow.unit_letter add constraint unit_letter_check check (value in (
  's', 'c', 'f', 'a', 't', 'T', 'S', 'W', 'k', 'K', 'x', 'X', 'p', 'w', 'v', 'e', 'n', 'o',
  'd', 'i', 'j', 'C', 'F', 'U', 'A', 'E', 'R', 'r', 'y')) not valid;
