-- Limits of a value before it is stored, where a CHECK cannot say them. Python decodes JSON by
-- recursion and refuses integers of more than 4,299 digits, so a value beyond these bounds would be a
-- row that SQL can read and no worker can: it is refused here, at the door, for callers of any language.

create or replace function pgflow.json_depth_(value text)
returns int
language plpgsql
immutable strict
set search_path = pg_catalog, pg_temp
as $$
declare
  depth int := 0;
  deepest int := 0;
  bracket text;
begin
  -- Strings may hold brackets too: take them out first.
  for bracket in
    select m[1] from regexp_matches(regexp_replace(value, e'"(\\\\.|[^"\\\\])*"', '', 'g'), '[][{}]', 'g') m
  loop
    if bracket in ('[', '{') then
      depth := depth + 1;
      deepest := greatest(deepest, depth);
    else
      depth := depth - 1;
    end if;
  end loop;
  return deepest;
end
$$;
comment on function pgflow.json_depth_(text) is 'Depth to which a JSON text is nested';

create or replace function pgflow.has_long_number_(value text)
returns boolean
language plpgsql
immutable strict
set search_path = pg_catalog, pg_temp
as $$
declare
  zeros constant text := repeat('0', 4300);
begin
  -- Strings may hold digits too: take them out only where that can matter.
  return position(zeros in translate(value, '123456789', '000000000')) > 0
    and position(zeros in translate(regexp_replace(value, e'"(\\\\.|[^"\\\\])*"', '', 'g'), '123456789',
      '000000000')) > 0;
end
$$;
comment on function pgflow.has_long_number_(text)
  is 'True if a JSON text holds more than 4,299 digits in a row outside of strings';

create or replace function pgflow.check_json_(value json, what text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  body text := value::text;
begin
  if value is null then
    return;
  end if;
  if octet_length(body) > 1048576 then
    raise exception using errcode = 'PF003',
      message = format('%s is %s bytes long; the limit is 1 MiB', what, octet_length(body)),
      hint = 'Store the data elsewhere and pass a reference to it.';
  end if;
  if pgflow.is_redacted_(body) then
    raise exception using errcode = 'PF003', message = format('%s looks like a value that was redacted', what);
  end if;
  if length(body) - length(translate(body, '[{', '')) > 200 and pgflow.json_depth_(body) > 200 then
    raise exception using errcode = 'PF003', message = format('%s is nested more than 200 levels deep', what);
  end if;
  if length(body) > 4299 and pgflow.has_long_number_(body) then
    raise exception using errcode = 'PF003', message = format('%s holds a number of more than 4,299 digits', what);
  end if;
  -- What jsonb cannot hold - NUL, half a surrogate pair, 1e200000 - some client or view could not read.
  begin
    perform body::jsonb;
  exception
    when untranslatable_character then
      raise exception using errcode = 'PF003',
        message = format('%s holds the character NUL, which text in Postgres cannot', what);
    when data_exception or program_limit_exceeded then
      raise exception using errcode = 'PF003', message = format('%s cannot be read back: %s', what, sqlerrm);
  end;
end
$$;
comment on function pgflow.check_json_(json, text)
  is 'Refuses (PF003) a value too long, too deep or too large to be read back by every client';

create or replace function pgflow.is_short_object_(body text)
returns boolean
language sql
immutable
-- No escapes and no long exponents: jsonb holds all else of that length.
return octet_length(body) <= 200 and starts_with(body, '{') and body !~ '\\|[0-9][eE][-+]?[0-9]{4}|^\{"\$codec"';
comment on function pgflow.is_short_object_(text)
  is 'True if the text of a json value is plainly an object that check_json_ accepts; false says nothing';

create or replace function pgflow.check_name_(name text, what text, max_bytes int default 255)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if name is null or name = '' or octet_length(name) > max_bytes then
    raise exception using errcode = 'PF003',
      message = format('%s must be 1 to %s bytes long, not %s', what, max_bytes, coalesce(octet_length(name), 0));
  end if;
end
$$;
comment on function pgflow.check_name_(text, text, int) is 'Refuses (PF003) a name that is missing, empty or too long';

create or replace function pgflow.check_form_(form text, wanted text, what text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if form <> wanted then
    raise exception using errcode = 'PF003', message = format('%s must be an %s, not %s', what, wanted, form);
  end if;
end
$$;
comment on function pgflow.check_form_(text, text, text)
  is 'Refuses (PF003) a value whose json_typeof is not the one that is wanted, array or object';

create or replace function pgflow.at_most_(count int)
returns int
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if count < 0 then
    raise exception using errcode = 'PF003', message = format('a number of rows must be 0 or more, not %s', count);
  end if;
  return count;
end
$$;
comment on function pgflow.at_most_(int) is 'The limit of a query that a caller names; PF003 if it is below zero';

create or replace function pgflow.check_zone_(zone text)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  begin
    if timestamp '2000-01-01' at time zone zone is not null then
      return zone;
    end if;
  exception when invalid_parameter_value then
    null; -- it has no other test
  end;
  raise exception using errcode = 'PF003', message = format('unknown time zone %s', quote_nullable(zone)),
    hint = 'Names of zones are those of the IANA database, such as Europe/London.';
end
$$;
comment on function pgflow.check_zone_(text) is 'Refuses (PF003) a name of no time zone, and answers any other';

create or replace function pgflow.check_objects_(list jsonb, what text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if jsonb_typeof(list) <> 'array' or list @? '$[*] ? (@.type() != "object")' then
    raise exception using errcode = 'PF003', message = format('%s must be an array of objects', what);
  end if;
end
$$;
comment on function pgflow.check_objects_(jsonb, text) is 'Refuses (PF003) a value other than an array of objects';
