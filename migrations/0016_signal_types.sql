-- What workers have said of the signals that their code waits for.

create table pgflow.code_signal (
  code_id int not null,
  signal text not null check (octet_length(signal) between 1 and 255),
  shape jsonb not null
);
create unique index code_signal_key on pgflow.code_signal (signal, code_id, md5(shape::text));
create index code_signal_code_idx on pgflow.code_signal (code_id);
comment on table pgflow.code_signal is 'What payloads the signals have that code waits for, as far as it declares them';
comment on column pgflow.code_signal.code_id is 'The code';
comment on column pgflow.code_signal.signal is 'Name of the signal';
comment on column pgflow.code_signal.shape is 'What the code certainly refuses, see sql/shape.sql';
