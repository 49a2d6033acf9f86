-- Senders. A caller may give a name: a console that of the person at it, a command line that of its user. Nobody can
-- check it, so the role of the session follows it. That is last, and never cut off.

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
  is 'Name of the sender, with the role of the session in brackets; without a name, that role alone';

create or replace function pgflow.caller_()
returns name
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(pg_get_userbyid((pgflow.acting_())[1]), nullif(current_setting('role'), 'none'), session_user)::name
$$;
comment on function pgflow.caller_()
  is 'Role whose rights the caller of a function has that runs with its owner''s: in a step the definer of its '
     'workflow, else the one it has set, else that of the session';

create or replace function pgflow.told_(why text, most int)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if why ~* '://|pass[wp_-]|[_-]pass|secret|identified|authorization|cookie|key|token' then
    -- As pgflow/texts.py does it: of a URL up to the last @, of a value up to its closing quote or the next space.
    why := regexp_replace(why, e'([A-Za-z][A-Za-z0-9.+-]*://[^\\s:/?#@]*):\\S*@', e'\\1:***@', 'g');
    why := regexp_replace(why, e'([a-z_-]*(?:password|passwd|passphrase|[_-]pass|secret'
      || e'|(?:api|access|account|private|secret)[_-]?key|(?:access|api|auth|id|refresh|secret|session)[_-]?token|cookie)'
      || e'["'']*)'
      || e'(\\s*=\\s*|\\s*:(?=\\S)|\\s*:\\s+(?=\\S+\\s*(?:[\\n,;)}]|$)|[''"]))'
      || e'(''(?:[^''\\\\]|\\\\.|'''')*''?|"(?:[^"\\\\]|\\\\.)*"?|[^\\s]+)', e'\\1\\2***', 'gi');
    why := regexp_replace(why,
      e'(authorization["'']*\\s*[=:]\\s*["'']?)(?!\\*\\*\\*)((?:basic|bearer|digest|token)\\s+)?[^\\s''",]+',
      e'\\1\\2***', 'gi');
    why := regexp_replace(why, e'\\m(password|identified\\s+by)(\\s+)''(?:[^'']|'''')*''?', e'\\1\\2''***''', 'gi');
  end if;
  return left(why, most);
end
$$;
comment on function pgflow.told_(text, int) is 'A given reason, with the passwords in it masked, cut'
  ' to so many characters';
