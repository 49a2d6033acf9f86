-- Tokens of a workflow's text, and what can be said of them without knowing what they mean: where a statement ends, and
-- whether something durable is in it. Blanks and comments are no tokens; text is always cut out of the body by
-- positions, so that what a step runs is what was written, to the character and the line. As in Postgres, each character
-- beyond ASCII is a letter, in any locale, and has no case.

create or replace function pgflow.flow_place_(body text, at int)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select format('line %s, column %s', 1 + length(h.head) - length(replace(h.head, e'\n', '')),
    1 + length(split_part(h.head, e'\n', -1)))
  from (select left(body, at - 1) as head) h
$$;
comment on function pgflow.flow_place_(text, int) is 'Line and column of a position in a text';

create or replace function pgflow.flow_fail_(body text, at int, message text, hint text default null)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  message := pgflow.flow_place_(body, at) || ': ' || message;
  if hint is null then
    raise exception using errcode = 'PF003', message = message;
  end if;
  raise exception using errcode = 'PF003', message = message, hint = hint;
end
$$;
comment on function pgflow.flow_fail_(text, int, text, text)
  is 'Refuses (PF003) the text of a workflow, with line and column';

create or replace function pgflow.flow_tokens_(body text, out tokens text[], out low text[], out places int[])
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  -- Of a word, a number or an operator, none of which has quotes, comments or $.
  plain constant text := e'\\s+|[^\\x01-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f]'
    || e'[^\\x01-\\x23\\x25-\\x2f\\x3a-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f]*'
    || e'|\\d+(?:\\.(?!\\.)\\d*)?|:=|::|=>|<=|>=|<>|!=|<<|>>|\\.\\.|.';
  many record;
  pos int := 1;
  rest text;
  token text;
  tag text;
  depth int;
begin
  tokens := '{}';
  low := '{}';
  places := '{}';
  while pos <= length(body) loop
    rest := substr(body, pos, 300);
    -- Up to the last blank before a quote, a comment or a $, in one look; the rest one by one.
    token := substring(rest from e'^[^''"$/-]*\\s');
    if token is not null then
      select array_agg(m.t order by m.n) filter (where m.t !~ e'^\\s') as tokens,
        array_agg(pos + m.behind - length(m.t) order by m.n) filter (where m.t !~ e'^\\s') as places
      into many
      from (
        select t.m[1] as t, t.n, sum(length(t.m[1])) over (order by t.n)::int as behind
        from regexp_matches(token, plain, 'g') with ordinality as t (m, n)
      ) m;
      tokens := tokens || many.tokens;
      low := low || array(select lower(t.token collate "C") from unnest(many.tokens) with ordinality as t (token, n)
        order by t.n);
      places := places || many.places;
      pos := pos + length(token);
      continue;
    end if;
    if left(rest, 2) = '--' then
      pos := pos + length(split_part(substr(body, pos), e'\n', 1));
      continue;
    end if;
    if left(rest, 2) = '/*' then
      depth := 0; -- they nest
      for token in select m[1] from regexp_matches(substr(body, pos), e'/\\*|\\*/|[^*/]+|.', 'g') m loop
        pos := pos + length(token);
        depth := depth + case token when '/*' then 1 when '*/' then -1 else 0 end;
        exit when depth = 0;
      end loop;
      if depth > 0 then
        perform pgflow.flow_fail_(body, pos - 1, 'a comment is not closed');
      end if;
      continue;
    end if;
    tag := substring(rest from e'^\\$(?:[^\\x01-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f][^\\x01-\\x2f\\x3a-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f]*)?\\$');
    if tag is not null then
      token := tag || split_part(substr(body, pos + length(tag)), tag, 1) || tag;
    elsif rest ~ '^[eE]''' then
      token := substring(substr(body, pos) from e'^[eE]''(?:[^''\\\\]|''''|\\\\.)*''');
    elsif rest ~ '^([bBxXnN]|[uU]&)?''' then
      token := substring(substr(body, pos) from '^(?:[bBxXnN]|[uU]&)?''(?:[^'']|'''')*''');
    elsif rest ~ '^([uU]&)?"' then
      token := substring(substr(body, pos) from '^(?:[uU]&)?"(?:[^"]|"")*"');
    else
      token := substring(rest from '^(?:' || plain || ')');
    end if;
    if token is null or substr(body, pos, length(token)) <> token then
      perform pgflow.flow_fail_(body, pos, 'a quote is not closed');
    end if;
    tokens := tokens || token;
    low := low || case when left(token, 1) in ('"', '''', '$') then token else lower(token collate "C") end;
    places := places || pos;
    pos := pos + length(token);
  end loop;
end
$$;
comment on function pgflow.flow_tokens_(text)
  is 'Tokens of SQL as they are and in lower case, save what is quoted, with their positions; no blanks, no comments';

create or replace function pgflow.flow_name_(token text)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case when token ~ e'^[^\\x01-\\x40\\x5b-\\x5e\\x60\\x7b-\\x7f]' and token !~ '''' then lower(token collate "C")
    when left(token, 1) = '"' then replace(substr(token, 2, length(token) - 2), '""', '"') end
$$;
comment on function pgflow.flow_name_(text) is 'The identifier that a token is; null if it is none';

create or replace function pgflow.flow_quoted_(name text)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  -- quote_ident leaves words alone that only plpgsql reserves, such as loop.
  select '"' || replace(name, '"', '""') || '"'
$$;
comment on function pgflow.flow_quoted_(text) is 'An identifier in quotes, whichever it is';

create or replace function pgflow.flow_is_label_(low text[], i int)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.flow_name_(low[i]) is not null
    and (low[i + 1] = ':' or low[i] <> 'undo'
      and (low[i + 1] = 'retry' and low[i + 2] ~ e'^\\d' or low[i + 1] = 'timeout' and low[i + 2] ~ '^'''))
$$;
comment on function pgflow.flow_is_label_(text[], int) is 'True if the statement at a token begins a step';

create or replace function pgflow.flow_is_word_(low text[], i int)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select low[i + 1] not in (':=', '=', '.', '[') and (
    low[i] in ('sleep', 'wait', 'run', 'undo', 'return', 'ask', 'spend', 'emit', 'publish', 'patched')
    or low[i] = 'for' and low[i + 1] = 'each' or low[i] = 'set' and low[i + 1] = 'state'
    or low[i] = 'lock' and pgflow.flow_until_(low, i, '{loop}') is not null)
$$;
comment on function pgflow.flow_is_word_(text[], int)
  is 'True if the statement at a token begins with a durable word: one that ends a step';

create or replace function pgflow.flow_is_sql_(low text[], i int, is_durable boolean)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select not pgflow.flow_is_label_(low, i) and not pgflow.flow_is_word_(low, i)
    and not (low[i] = 'raise' and coalesce(low[i + 1] = ';', false))
    and (pgflow.flow_name_(low[i]) is distinct from low[i] or coalesce(low[i + 1] in (':=', '=', '.', '['), false)
      or not is_durable and low[i] not in ('end', 'elsif', 'elseif', 'else', 'exception', 'exit', 'continue', 'when'))
$$;
comment on function pgflow.flow_is_sql_(text[], int, boolean)
  is 'True if the statement at a token is one of SQL or plpgsql, and so part of the step at hand';

create or replace function pgflow.flow_span_(low text[], i int, out stop int, out is_durable boolean)
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  blocks text[] := '{}'; -- that are open: if, loop, begin, case, and expr for a CASE that is an expression
  brackets int := 0;
  is_first boolean := true; -- of a statement
  is_declaring boolean := low[i] = 'declare'; -- up to begin
begin
  is_durable := false;
  for j in i .. cardinality(low) loop
    is_declaring := is_declaring and low[j] <> 'begin';
    if is_first and (pgflow.flow_is_word_(low, j) or pgflow.flow_is_label_(low, j)
      or low[j] = 'raise' and low[j + 1] = ';' and 'begin' <> all(blocks)
      or low[j] in ('exit', 'continue') and 'loop' <> all(blocks)
      -- by a label that is not in this statement
      or low[j] in ('exit', 'continue') and low[j + 1] not in ('when', ';')
        and not low[i : j] @> array['<<', low[j + 1]]
    ) then
      is_durable := true;
    end if;
    if low[j] in ('(', '[') then
      brackets := brackets + 1;
    elsif low[j] in (')', ']') then
      brackets := brackets - 1;
    elsif low[j] = 'end' then
      stop := j;
      exit when blocks = '{}';
      blocks := blocks[1 : cardinality(blocks) - 1];
    elsif low[j - 1] = 'end' and low[j] in ('if', 'loop', 'case') and j > i then
      null;
    elsif low[j] = 'case' then
      blocks := blocks || case when is_first then 'case' else 'expr' end;
    elsif low[j] = 'loop' or is_first and low[j] in ('if', 'begin') or low[j] = 'begin' and low[i] = 'declare' and blocks = '{}' then
      blocks := blocks || low[j];
    elsif low[j] = ';' and blocks = '{}' and brackets <= 0 and not is_declaring then
      stop := j;
      return;
    end if;
    is_first := not is_declaring and low[j] in (';', 'loop', 'begin', '>>')
      or low[j] in ('then', 'else') and blocks[cardinality(blocks)] is distinct from 'expr'
      or low[j] = ':' and pgflow.flow_is_label_(low, j - 1);
  end loop;
  stop := null;
end
$$;
comment on function pgflow.flow_span_(text[], int)
  is 'The last token of the statement at a token, null if it has no end; and whether something durable is in it';

create or replace function pgflow.flow_until_(low text[], i int, words text[])
returns int
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  depth int := 0;
begin
  for j in i .. cardinality(low) loop
    if depth = 0 and low[j] = any(words) then
      return j;
    end if;
    depth := depth + case when low[j] in ('(', '[', 'case') then 1 when low[j] in (')', ']', 'end') then -1 else 0 end;
    exit when depth < 0 or low[j] = ';';
  end loop;
  return null;
end
$$;
comment on function pgflow.flow_until_(text[], int, text[])
  is 'The first of these tokens from a token on that stands in no brackets and no CASE, up to the end of the statement';
