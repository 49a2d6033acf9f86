-- Senders. A caller may give a name: a console that of the person at it, a command line that of its user. Nobody can
-- check it, so the role of the session stands behind it. That is last, and never cut off.

create or replace function pgflow.sender_(name text)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  -- A role has 63 bytes at most, and who keeps this has room for 255 characters.
  select case when coalesce(name, '') in ('', session_user) then session_user::text
    else left(name, 180) || ' (' || session_user || ')' end
$$;
comment on function pgflow.sender_(text)
  is 'Name of whoever says something, with the role of the session in brackets; without a name, that role alone';

create or replace function pgflow.caller_()
returns name
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(nullif(current_setting('role'), 'none'), session_user)::name
$$;
comment on function pgflow.caller_()
  is 'Role whose rights the caller of a function has that runs with its owner''s: the one it has set, else that of '
     'the session';
