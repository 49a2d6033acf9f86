-- The general ledger of the treasury: the application's own tables, beside the schema `pgflow` in the same
-- database. Transactional steps write them in the very transaction that records the step.
--
-- No table forbids a duplicate, on purpose: a unique (day, kind) would hide a day that was posted twice
-- behind an error or an `on conflict do nothing`. Here it would stand in the books, and the proof would
-- find it.

create schema treasury;
comment on schema treasury is 'pgflow example: the treasury';

create table treasury.books (
  name text not null,
  seed bigint not null,
  bank_book_path text not null,
  opened_at timestamptz not null default clock_timestamp()
);
comment on table treasury.books is 'One row: which runs belong to this ledger (their label books), and where the bank keeps its book';

create table treasury.gl_entry (
  entry_id bigint generated always as identity primary key,
  day date not null,
  posting int not null,
  kind text not null,
  account text not null,
  currency text not null,
  debit bigint not null check (debit >= 0),
  credit bigint not null check (credit >= 0),
  reference text,
  run_key text not null,
  check ((debit = 0) <> (credit = 0))
);
comment on table treasury.gl_entry is 'One side of a posting, in cents; the two sides share day and posting, reference is the bank''s';

create table treasury.balance (
  day date not null,
  account text not null,
  currency text not null,
  opening bigint not null,
  flows bigint not null,
  sweeps bigint not null,
  closing bigint not null,
  euros_buy numeric not null,
  run_key text not null
);
comment on table treasury.balance is 'Balance of each account at the close of a day, in cents, and the units of its currency that a euro bought';

create table treasury.report (
  report_id bigint generated always as identity primary key,
  day date not null,
  policy text not null,
  liquid_euro_cents bigint not null,
  liquidity_ratio numeric not null,
  acknowledged_by text,
  run_key text not null,
  closed_at timestamptz not null default clock_timestamp()
);
comment on table treasury.report is 'A closed day, and the liquidity ratio as filed';

create table treasury.bank_book (
  line int not null,
  type text not null,
  key text,
  reference text,
  day date,
  kind text,
  account text not null,
  currency text not null,
  cents bigint not null,
  counterparty text
);
comment on table treasury.bank_book is 'The bank''s book as the proof has read it from the bank''s file; the treasury never writes it';
