-- Obligations: what a run has promised somebody. They stand in `owed` beside the open effects.

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values
  ('O', 'obligation_opened', false,
    'commit_units: owe(); adopt_obligations_: one that another generation had opened'),
  ('D', 'obligation_closed', false,
    'commit_units: discharge(), waive(), transfer(); close_by_word_: said by others; adopt_obligations_: handed on'),
  ('B', 'obligation_breached', false, 'note_breach_: it was due and not discharged');

-- Not valid: the journal may be large, and what is in it has been checked by a narrower list. The letters are those that
-- the table names, whichever migrations have added some.
do $$
begin
  alter domain pgflow.unit_letter drop constraint unit_letter_check;
  execute (
    select format('alter domain pgflow.unit_letter add constraint unit_letter_check check (value in (%s)) not valid',
      string_agg(quote_literal(k.kind::text), ', ' order by k.kind::text collate "C"))
    from pgflow.unit_kind k
  );
end $$;

-- squawk-ignore ban-drop-constraint
alter table pgflow.page drop constraint page_kind_check;
-- squawk-ignore constraint-missing-not-valid
alter table pgflow.page add constraint page_kind_check check (kind in ('stuck', 'effect', 'gate', 'obligation'));

-- By its key, which everybody has who closes it.
-- squawk-ignore require-concurrent-index-creation
create index owed_obligation_idx on pgflow.owed ((detail->>'key')) where kind = 'obligation';
-- Those that the sweep finds once they are due.
-- squawk-ignore require-concurrent-index-creation
create index owed_due_idx on pgflow.owed (due_at) where kind = 'obligation' and detail->>'state' = 'open';
-- Those that a person is told of.
-- squawk-ignore require-concurrent-index-creation
create index owed_person_idx on pgflow.owed (run_id) where kind = 'obligation' and detail ? 'since';
