-- The compiler: the text of a workflow becomes a list of nodes, which `advance` walks (`sql/flows/work.sql`), and one
-- function of plpgsql, which has the SQL of all nodes.
--
--   step    a transaction's worth of SQL; its variables afterwards are its result
--   set     what `declare` initializes             test    a condition: `next` if it holds, else `alt`
--   rows    the rows of a loop, read once          next    the next of them, or `alt`
--   wait    for a signal                           sleep   for so many seconds
--   run     a child                                each    a child for each row
--   note    the state of the run, or a value of a stream
--   goto    to `next`                              return  the result of the run
--   rethrow the error that the handler has
--
-- The function takes the number of a node and all variables, declared by their types and filled from the run's
-- document, so no value ever becomes text of SQL. Everything stands on the line of the function on which it stands in
-- the text, so that Postgres' own errors name the author's lines. `run`, a document with key, id and tenant of the run,
-- is its parameter.
--
-- A word of the language that is not built, and a construct that would only half work, is refused here, by line and
-- column: what compiles, runs.

create or replace function pgflow.flow_type_(type text, body text, at int, schemas name[])
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  found text;
  of_column text[] := regexp_match(type, e'^(.*?)\\s*\\.\\s*(\\w+|"(?:[^"]|"")+")\\s*%\\s*type$', 'i');
begin
  if type !~ '%' then
    return type;
  elsif type ~* e'%\\s*rowtype$' then
    return regexp_replace(type, e'\\s*%\\s*rowtype$', '', 'i');
  end if;
  -- Not by their search path: this runs with the rights of the schema's owner.
  begin
    select format_type(a.atttypid, a.atttypmod) into found
    from unnest(array[null::name] || schemas) with ordinality as s (schema, n)
    join pg_attribute a on a.attname = pgflow.flow_name_(of_column[2])
      and a.attrelid = to_regclass(coalesce(quote_ident(s.schema) || '.', '') || of_column[1])
    order by s.n limit 1;
  exception when others then
    found := null;
  end;
  if found is null then
    perform pgflow.flow_fail_(body, at, format('the type %s names no column', type));
  end if;
  return found;
end
$$;
comment on function pgflow.flow_type_(text, text, int, name[])
  is 'The type of a variable, with what %type and %rowtype stand for';

create or replace function pgflow.flow_is_row_(type text, schemas name[])
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return type ~* '^jsonb?$' or exists (
    select from unnest(array[null::name] || schemas) s (schema)
    join pg_type t on t.oid = to_regtype(coalesce(quote_ident(s.schema) || '.', '') || type) and t.typtype = 'c');
exception when others then
  return false; -- no type at all: that is said of its declaration
end
$$;
comment on function pgflow.flow_is_row_(text, name[]) is 'True if a variable of this type takes a whole row';

create or replace function pgflow.flow_variables_(body text, low text[], places int[], i int, stop int, schemas name[])
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  variables jsonb := '[]';
  type_at int;
  type_end int;
  last int;
  name text;
  type text;
begin
  while i < stop loop
    last := coalesce(pgflow.flow_until_(low, i, '{;,","}'), stop);
    name := pgflow.flow_name_(low[i]);
    type_at := i + 1 + (low[i + 1] = 'constant')::int;
    type_end := coalesce(pgflow.flow_until_(low, type_at, '{:=,=,default,not,collate,;,","}'), stop);
    if name is null or name ~ '^_|@' or name in ('run', 'error', 'timed_out', 'found') then
      perform pgflow.flow_fail_(body, places[i], format('%s cannot be the name of a variable', low[i]),
        'run, error, timed_out and found are there already; names do not begin with an underscore.');
    elsif variables @> jsonb_build_array(jsonb_build_object('name', name)) then
      perform pgflow.flow_fail_(body, places[i], format('the variable %s is declared twice', name));
    elsif type_end = type_at or low[type_at] in ('alias', 'cursor', 'no', 'scroll', 'refcursor') then
      perform pgflow.flow_fail_(body, places[i], format('the variable %s needs a type', name),
        'Cursors and aliases are not kept between steps: use them inside a block of one step.');
    elsif low[last] = 'begin' then
      perform pgflow.flow_fail_(body, places[i], format('the declaration of %s does not end with ;', name));
    end if;
    type := pgflow.flow_type_(rtrim(substr(body, places[type_at], places[type_end] - places[type_at])), body,
      places[type_at], schemas);
    if low[type_end] in ('not', 'collate') then
      type_end := coalesce(pgflow.flow_until_(low, type_end, '{:=,=,default,;,","}'), stop);
    end if;
    variables := variables || jsonb_strip_nulls(jsonb_build_object('name', name, 'type', type,
      'is_local', nullif(lower(type) = 'record', false),
      'at', case when last > type_end then places[type_end + 1] end,
      'value', case when last > type_end then
        rtrim(substr(body, places[type_end + 1], places[last] - places[type_end + 1])) end));
    i := last + 1;
  end loop;
  return variables;
end
$$;
comment on function pgflow.flow_variables_(text, text[], int[], int, int, name[])
  is 'Variables that are declared between two tokens, with types and values; a record lives within a step';

create or replace function pgflow.flow_arguments_(body text, low text[], places int[], i int, stop int)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  parts text[] := '{}';
  last int;
begin
  while i < stop loop
    last := coalesce(pgflow.flow_until_(low, i, '{","}'), stop);
    if last > stop then
      last := stop;
    end if;
    if pgflow.flow_name_(low[i]) is null or low[i + 1] not in ('=>', ':=') or last < i + 3 then
      perform pgflow.flow_fail_(body, places[i], 'arguments have names: parameter => value');
    end if;
    parts := parts || format('%L, (select pg_catalog.to_jsonb(_q.x) from (select %s as x) _q)',
      pgflow.flow_name_(low[i]), rtrim(substr(body, places[i + 2], places[last] - places[i + 2])));
    i := last + 1;
  end loop;
  return format('pg_catalog.jsonb_build_object(%s)', array_to_string(parts, ', '));
end
$$;
comment on function pgflow.flow_arguments_(text, text[], int[], int, int)
  is 'The expression that makes the input of a child of its arguments, which stand between two tokens';

create or replace function pgflow.flow_source(program jsonb, node_number int default null)
returns text
language plpgsql
immutable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  label text := quote_ident(program->>'workflow');
  all_of text;
  kept_types text;
  assigned text;
  kept_out text;
  made text;
  node record;
begin
  select string_agg(format('%I %s;', v->>'name', v->>'type'), ' ' order by n),
    string_agg(format('%I %s', v->>'name', v->>'type'), ', ' order by n) filter (where not v ? 'is_local'),
    string_agg(format('%s.%I := _l.%2$I;', label, v->>'name'), ' ' order by n) filter (where not v ? 'is_local'),
    string_agg(format('%s.%I as %2$I', label, v->>'name'), ', ' order by n) filter (where not v ? 'is_local')
  into all_of, kept_types, assigned, kept_out
  from jsonb_array_elements(program->'variables') with ordinality as e (v, n);
  made := format('<<%s>> declare _l record; %s begin select * into _l from pg_catalog.jsonb_to_record(_in) as '
    '_j(%s); %s case _node',
    label, all_of, kept_types, assigned);
  for node in
    select n.pc, n.node->>'code' as code, (n.node->>'line')::int as line
    from jsonb_array_elements(program->'nodes') with ordinality as n (node, pc)
    where n.node ? 'code' and n.pc = coalesce(node_number, n.pc) order by (n.node->>'line')::int, n.pc
  loop
    -- On its own line: what stands before it in the text stands before it here.
    made := made
      || repeat(e'\n', greatest(0, node.line - 1 - (length(made) - length(replace(made, e'\n', '')))))
      || format(' when %s then %s', node.pc, node.code);
  end loop;
  return made || case when node_number = 0 then ' when 0 then null;' else '' end
    || format(e'\nend case; return (select pg_catalog.to_jsonb(_o) from (select %s) _o); end', kept_out);
end
$$;
comment on function pgflow.flow_source(jsonb, int)
  is 'The text of the function that has the SQL of all nodes of a workflow, or of only one; 0 = of none';
--! grant flow_source to pgflow_client, pgflow_operator

create or replace function pgflow.flow_signature_(signature text, schemas name[], out workflow text,
  out variables jsonb)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  t record;
  n int;
begin
  select k.tokens, k.low, k.places into t from pgflow.flow_tokens_(signature) k;
  n := cardinality(t.low);
  workflow := pgflow.flow_name_(t.tokens[1]);
  if workflow is null or t.low[2] is distinct from '(' or t.low[n] <> ')' or n < 3 then
    raise exception using errcode = 'PF003', message = format('%s is no signature of a workflow',
      quote_nullable(signature)),
      hint = 'It looks like that of a function: fulfil(order_id int, express boolean = false)';
  elsif octet_length(workflow) > 50 or workflow ~ '@' then
    raise exception using errcode = 'PF003', message = 'the name of a workflow has at most 50 bytes, and no @';
  end if;
  variables := pgflow.flow_variables_(signature, t.low, t.places, 3, n, schemas);
end
$$;
comment on function pgflow.flow_signature_(text, name[])
  is 'Name and parameters of a workflow: name(parameter type [= default], ...)';

create or replace function pgflow.flow_cut_(body text, places int[], i int, stop int)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select rtrim(substr(body, places[i], greatest(0, places[stop] - places[i])))
$$;
comment on function pgflow.flow_cut_(text, int[], int, int) is 'The text from one token up to another';

create or replace function pgflow.flow_line_(body text, place int)
returns int
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select substring(pgflow.flow_place_(body, place) from e'\\d+')::int
$$;
comment on function pgflow.flow_line_(text, int) is 'The line of a position in a text';

create or replace function pgflow.flow_has_(variables jsonb, name text)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(variables @> jsonb_build_array(jsonb_build_object('name', name)), false)
$$;
comment on function pgflow.flow_has_(jsonb, text) is 'True if a variable of this name is declared';

create or replace function pgflow.flow_label_(
  body text, tokens text[], low text[], places int[], i int, out opts jsonb, out stop int
)
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  opts := '{}';
  stop := i + 1;
  if low[stop] = 'retry' then
    if low[stop + 1] !~ e'^\\d{1,6}$' then
      perform pgflow.flow_fail_(body, places[stop + 1], 'retry takes a number of further tries');
    end if;
    opts := jsonb_build_object('retry', low[stop + 1]::int);
    stop := stop + 2;
  end if;
  if low[stop] = 'every' then
    begin
      opts := opts || jsonb_build_object('every', extract(epoch from replace(btrim(
        case when left(tokens[stop + 1], 1) = '''' then tokens[stop + 1] end, ''''), '''''', '''')::interval));
    exception when data_exception then
      opts := '{"every": null}';
    end;
    if coalesce((opts->>'every')::numeric, -1) < 0 then
      perform pgflow.flow_fail_(body, places[stop + 1], 'every takes an interval in quotes: every ''10 s''');
    end if;
    stop := stop + 2;
  end if;
  if low[stop] is distinct from ':' then
    perform pgflow.flow_fail_(body, coalesce(places[stop], places[i]),
      'a step begins as: name [retry 3 [every ''10 s'']]:');
  end if;
end
$$;
comment on function pgflow.flow_label_(text, text[], text[], int[], int)
  is 'Options of the step that the label at a token begins, and the token of its colon';

create or replace function pgflow.flow_each_(
  body text, tokens text[], low text[], places int[], i int, stop int, variables jsonb
)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  -- The last `run name (`, behind the query.
  child int := (select max(x) from generate_series(i, stop) x where low[x] = 'run' and low[x + 2] = '('
    and pgflow.flow_name_(tokens[x + 1]) is not null);
  target text := pgflow.flow_name_(tokens[i + 2]);
  opts jsonb := '{"most": 100}';
  closing int := pgflow.flow_until_(low, coalesce(child, i) + 3, '{)}');
  m int := closing + 1;
begin
  if low[i + 3] is distinct from 'in' or target is null or child is null or closing is null then
    perform pgflow.flow_fail_(body, places[i], 'for each is written as: '
      'for each row in query run workflow(...) [at most 10] [into v] [on failure continue];');
  elsif pgflow.flow_has_(variables, target) then
    perform pgflow.flow_fail_(body, places[i + 2],
      format('%s is a variable: give the rows of for each a name of their own', target));
  end if;
  while m < stop loop
    if low[m : m + 1] = '{at,most}' and low[m + 2] ~ e'^[1-9]\\d{0,5}$' then
      opts := opts || jsonb_build_object('most', low[m + 2]::int);
      m := m + 3;
    elsif low[m] = 'into' and pgflow.flow_has_(variables, pgflow.flow_name_(tokens[m + 1])) then
      opts := opts || jsonb_build_object('into', pgflow.flow_name_(tokens[m + 1]));
      m := m + 2;
    elsif low[m : m + 2] = '{on,failure,continue}' then
      opts := opts || '{"go_on": true}';
      m := m + 3;
    else
      perform pgflow.flow_fail_(body, places[m], format('%s is not understood', tokens[m]),
        'Behind the workflow come: at most 10, into a declared variable, on failure continue.');
    end if;
  end loop;
  return jsonb_build_object('op', 'each', 'name', pgflow.flow_name_(tokens[child + 1]), 'opts', opts, 'code',
    format('return (select coalesce(pg_catalog.jsonb_agg(%s), ''[]'') from (%s) %I);',
      pgflow.flow_arguments_(body, low, places, child + 3, closing), pgflow.flow_cut_(body, places, i + 4, child),
        target));
end
$$;
comment on function pgflow.flow_each_(text, text[], text[], int[], int, int, jsonb) is 'The node of a for each';

create or replace function pgflow.flow_wait_(
  body text, tokens text[], low text[], places int[], i int, stop int, variables jsonb
)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  signal text := pgflow.flow_name_(tokens[i + 2]);
  into_at int := coalesce(pgflow.flow_until_(low, i + 3, '{into}'), stop);
  target text := case when into_at < stop then pgflow.flow_name_(tokens[into_at + 1]) end;
  has_timeout boolean := low[i + 3] = 'timeout';
begin
  if low[i + 2] = 'event' and low[i + 3] not in ('timeout', 'into', ';') then
    perform pgflow.flow_fail_(body, places[i], 'wait for event is not part of the language yet');
  elsif low[i + 1] <> 'for' or coalesce(signal, '') = '' then
    perform pgflow.flow_fail_(body, places[i],
      'a wait is written as: wait for signal [timeout ''3 days''] [into variable];');
  elsif into_at < stop and (into_at <> stop - 2 or not pgflow.flow_has_(variables, target))
    or (has_timeout and into_at < i + 5) or (not has_timeout and into_at <> i + 3)
  then
    perform pgflow.flow_fail_(body, places[i + 3], format('%s is not understood', tokens[i + 3]),
      'Behind the signal come: timeout ''3 days'', into a declared variable.');
  end if;
  return jsonb_build_object('op', 'wait', 'name', signal,
      'opts', jsonb_strip_nulls(jsonb_build_object('into', target, 'timeout', nullif(has_timeout, false))))
    || case when not has_timeout then '{}' else jsonb_build_object('is_time', true, 'expr',
      pgflow.flow_cut_(body, places, i + 4, into_at) || ')::interval + pg_catalog.now() - pg_catalog.now(') end;
end
$$;
comment on function pgflow.flow_wait_(text, text[], text[], int[], int, int, jsonb)
  is 'The node of a wait for a signal';

create or replace function pgflow.flow_word_(
  word text, body text, tokens text[], low text[], places int[], i int, stop int, variables jsonb
)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  expr text := pgflow.flow_cut_(body, places, i + 1, stop);
  value constant text := 'return (select pg_catalog.to_jsonb(_q.x) from (select %s as x) _q);';
  name text := pgflow.flow_name_(tokens[i + 1]);
  at int;
  target text;
begin
  case word
  when 'sleep' then
    return jsonb_build_object('op', 'sleep', 'name', 'sleep', 'is_time', true, 'expr', case when low[i + 1] = 'until'
      then pgflow.flow_cut_(body, places, i + 2, stop) || ')::timestamptz - pg_catalog.clock_timestamp('
      else expr || ')::interval + pg_catalog.now() - pg_catalog.now(' end);
  when 'run' then
    at := pgflow.flow_until_(low, i + 3, '{)}');
    target := case when low[at + 1] = 'into' then pgflow.flow_name_(tokens[at + 2]) end;
    if name is null or low[i + 2] <> '(' or at is null or at + 1 + 2 * (target is not null)::int <> stop
      or target is not null and not pgflow.flow_has_(variables, target)
    then
      perform pgflow.flow_fail_(body, places[i],
        'a child is written as: run workflow(parameter => value, ...) [into declared variable];');
    end if;
    return jsonb_build_object('op', 'run', 'name', name, 'opts', jsonb_strip_nulls(jsonb_build_object('into', target)),
      'code', format('return %s;', pgflow.flow_arguments_(body, low, places, i + 3, at)));
  when 'set' then
    return jsonb_build_object('op', 'note', 'name', 'state', 'opts', jsonb '{"kind": "v"}', 'code',
      format('return pg_catalog.to_jsonb(%s);', pgflow.flow_cut_(body, places, i + 2, stop)));
  when 'emit' then
    at := (select max(x) from generate_series(i, stop) x where low[x] = 'to');
    name := case when at = stop - 2 then pgflow.flow_name_(tokens[at + 1]) end;
    if coalesce(name, 'state') = 'state' then
      perform pgflow.flow_fail_(body, places[i], 'a value of a stream is written as: emit value to stream;');
    end if;
    return jsonb_build_object('op', 'note', 'name', name, 'opts', jsonb '{"kind": "e"}', 'code',
      format(value, pgflow.flow_cut_(body, places, i + 1, at)));
  when 'return' then
    if low[i + 1] in ('next', 'query') then
      perform pgflow.flow_fail_(body, places[i], format('a workflow returns one value: no return %s', low[i + 1]));
    end if;
    return jsonb_build_object('op', 'return', 'code',
      case when stop = i + 1 then 'return null;' else format(value, expr) end);
  end case;
end
$$;
comment on function pgflow.flow_word_(text, text, text[], text[], int[], int, int, jsonb)
  is 'The node of a sleep, a child, a note or a return';

create or replace function pgflow.compile_workflow(
  signature text, body text, schemas name[] default current_schemas(false)
)
returns jsonb
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  workflow text;
  parameters jsonb;
  variables jsonb;
  tokens text[];
  low text[];
  places int[];
  n int; -- number of tokens
  i int := 1; -- the token at hand
  j int;
  k int;
  m int;
  nodes jsonb[] := '{}';
  -- Blocks that are open: {what: if | case | loop, test: node whose `alt` is missing, outs: nodes whose `next` is the
  -- end, again: where a loop begins, label, subject, at}.
  stack jsonb[] := '{}';
  top jsonb;
  step jsonb; -- that is being gathered
  undos jsonb := '{}';
  handler int;
  span record;
  word text;
  target text;
  name text;
  expr text;
  node jsonb;
  loop_label text;
  is_over boolean := false;
begin
  select s.workflow, s.variables into workflow, parameters from pgflow.flow_signature_(signature, schemas) s;
  select t.tokens, t.low, t.places into tokens, low, places from pgflow.flow_tokens_(body) t;
  n := cardinality(tokens);
  places := places || length(body) + 1;
  variables := parameters;
  if low[1] = 'declare' then
    i := pgflow.flow_until_(array_replace(low, ';', ','), 2, '{begin}');
    if i is null then
      perform pgflow.flow_fail_(body, 1, 'declare is not followed by begin');
    end if;
    variables := variables || pgflow.flow_variables_(body, low, places, 2, i, schemas);
  end if;
  if low[i] is distinct from 'begin' then
    perform pgflow.flow_fail_(body, coalesce(places[i], 1), 'the text begins with declare or begin');
  elsif exists (select from jsonb_array_elements(parameters) p, jsonb_array_elements(variables) v
    where p->>'name' = v->>'name' and p <> v)
  then
    perform pgflow.flow_fail_(body, 1, 'a variable has the name of a parameter');
  end if;
  -- One node sets them all, each on its own line.
  expr := '';
  k := 1;
  for node in select v from jsonb_array_elements(variables) v where v ? 'value' loop
    is_over := parameters @> jsonb_build_array(node);
    m := case when is_over then 1 else pgflow.flow_line_(body, (node->>'at')::int) end;
    expr := expr || repeat(e'\n', greatest(0, m - k)) || format(case when is_over
      then ' if not pg_catalog.jsonb_exists(_in, %1$L) then %2$I.%1$I := %3$s; end if;' else ' %2$I.%1$I := %3$s;' end,
      node->>'name', workflow, node->>'value');
    k := 1 + length(expr) - length(replace(expr, e'\n', ''));
  end loop;
  is_over := false;
  if expr <> '' then
    nodes := nodes || jsonb_build_object('op', 'set', 'name', 'declare', 'code', expr, 'line', 1);
  end if;
  i := i + 1;

  while i <= n loop
    if is_over then
      perform pgflow.flow_fail_(body, places[i], 'nothing follows the last end');
    end if;
    word := case when pgflow.flow_name_(low[i]) = low[i] then low[i] end;
    if low[i] = ';' then
      i := i + 1;
      continue;
    end if;
    select s.stop, s.is_durable into span from pgflow.flow_span_(low, i) s;
    if low[i] = '<<' and low[i + 2] = '>>' then
      select s.stop, s.is_durable into span from pgflow.flow_span_(low, i + 3) s;
      if span.is_durable or span.stop is null then
        loop_label := pgflow.flow_name_(low[i + 1]);
        i := i + 3;
        continue;
      end if;
    end if;

    if not pgflow.flow_is_label_(low, i) and not pgflow.flow_is_word_(low, i) and (
      word is null or low[i + 1] in (':=', '=', '.', '[')
      or not span.is_durable and word not in ('end', 'elsif', 'elseif', 'else', 'exception', 'exit', 'continue', 'when')
    ) and not coalesce(word = 'raise' and low[i + 1] = ';', false) then
      -- A statement of SQL or plpgsql: part of the step at hand.
      if span.stop is null or low[span.stop] <> ';' then
        perform pgflow.flow_fail_(body, places[i], 'the statement does not end with ;');
      elsif word = 'lock' and 'loop' = any(low[i : span.stop]) then
        perform pgflow.flow_fail_(body, places[i], 'lock ... loop is not part of the language yet');
      elsif word in ('commit', 'rollback', 'savepoint') then
        perform pgflow.flow_fail_(body, places[i], format('%s is not for a step: pgflow commits it', word));
      else
        expr := substr(body, places[i], places[span.stop] - places[i] + 1);
        if step is null then
          step := jsonb_build_object('op', 'step', 'name',
            'line ' || pgflow.flow_line_(body, places[i]), 'opts', jsonb '{}');
        end if;
        step := step || case when step ? 'code'
          -- With the blanks and comments between two statements.
          then jsonb_build_object('code', substr(body, (step->>'at')::int, places[span.stop] + 1 - (step->>'at')::int))
          else jsonb_build_object('code', expr, 'at', places[i]) end;
      end if;
      i := span.stop + 1;
      continue;
    end if;

    -- All else ends it.
    if step is not null then
      if not step ? 'code' then
        perform pgflow.flow_fail_(body, (step->>'from')::int,
          format('the step %s has no statement', step->>'name'),
            'A label stands before SQL: waits, runs and returns end a step.');
      end if;
      nodes := nodes || step;
      step := null;
    end if;
    if pgflow.flow_is_label_(low, i) then
      name := pgflow.flow_name_(tokens[i]);
      if exists (select from unnest(nodes) x where x->>'op' = 'step' and x->>'name' = name) then
        perform pgflow.flow_fail_(body, places[i], format('the step %s is there already', name),
          'The names of steps are how you find them: each is given once.');
      elsif octet_length(name) > 200 then
        perform pgflow.flow_fail_(body, places[i], 'the name of a step has at most 200 bytes');
      end if;
      select h.opts, h.stop into span from pgflow.flow_label_(body, tokens, low, places, i) h;
      step := jsonb_build_object('op', 'step', 'name', name, 'from', places[i], 'opts', span.opts);
      j := span.stop;
      i := j + 1;
      continue;
    end if;

    -- The end of the statement, or of its head.
    j := case
      when word in ('if', 'elsif', 'elseif', 'when') then pgflow.flow_until_(low, i, '{then}')
      when word in ('while', 'loop') or word = 'for' and low[i + 1] <> 'each' then pgflow.flow_until_(low, i, '{loop}')
      when word = 'case' then pgflow.flow_until_(low, i + 1, '{when}')
      when word in ('else', 'exception') then i
      when word = 'end' then (select coalesce(min(x), n) from generate_series(i, least(n, i + 3)) x where low[x] = ';')
      when word = 'undo' then span.stop
      else pgflow.flow_until_(low, i, '{;}') end;
    if j is null then
      perform pgflow.flow_fail_(body, places[i], format('%s is not complete', coalesce(word, tokens[i])), case
        when word in ('if', 'elsif', 'elseif', 'when') then 'then is missing.'
        when word in ('while', 'for') then 'loop is missing.' else 'It does not end with ;' end);
    end if;
    top := stack[cardinality(stack)];
    node := jsonb_build_object('at', places[i]);
    expr := pgflow.flow_cut_(body, places, i + 1, j);

    case
    when word = 'undo' then
      name := pgflow.flow_name_(tokens[i + 1]);
      k := (select x.n from unnest(nodes) with ordinality as x (node, n)
        where x.node->>'op' = 'step' and x.node->>'name' = name);
      if low[i + 2] is distinct from ':' or name is null then
        perform pgflow.flow_fail_(body, places[i], 'a compensation is written as undo step: statement;');
      elsif k is null then
        perform pgflow.flow_fail_(body, places[i + 1], format('undo %s: there is no such step before it', name));
      elsif undos ? name then
        perform pgflow.flow_fail_(body, places[i + 1], format('the step %s has an undo already', name));
      end if;
      select s.stop, s.is_durable into span from pgflow.flow_span_(low, i + 3) s;
      if span.stop is null or low[span.stop] <> ';' or span.stop < i + 4 then
        perform pgflow.flow_fail_(body, places[i], 'the statement does not end with ;');
      elsif span.is_durable then
        perform pgflow.flow_fail_(body, places[i + 3], 'a compensation is one step: nothing durable can be in it');
      end if;
      j := span.stop;
      undos := undos || jsonb_build_object(name, jsonb_build_object('op', 'step', 'name', 'undo ' || name,
        'code', substr(body, places[i + 3], places[j] - places[i + 3] + 1), 'at', places[i + 3],
        'opts', jsonb '{"retry": 20, "every": 1}'));

    when word = 'if' then
      nodes := nodes || (node || jsonb_build_object('op', 'test', 'expr', expr));
      stack := stack || jsonb_build_object('what', 'if', 'test', cardinality(nodes), 'outs', jsonb '[]', 'at',
        places[i]);
    when word = 'case' then
      if (select bool_or(pgflow.flow_is_label_(low, x)) from generate_series(i + 1, j) x) then
        perform pgflow.flow_fail_(body, places[i], 'case is not complete', 'when is missing.');
      end if;
      stack := stack || jsonb_build_object('what', 'case', 'subject', expr, 'outs', jsonb '[]', 'at', places[i]);
      j := j - 1;
    when word in ('elsif', 'elseif', 'else', 'when') then
      if top is null or top ? 'else'
        or not top->>'what' = any(string_to_array((case word when 'when' then 'case' when 'else'
          then 'if,case' else 'if' end), ','))
      then
        perform pgflow.flow_fail_(body, places[i], format('%s belongs to no %s', word,
          case word when 'when' then 'case' else 'if' end));
      end if;
      if top ? 'test' then
        nodes := nodes || jsonb '{"op": "goto"}';
        top := jsonb_set(top, '{outs}', top->'outs' || to_jsonb(cardinality(nodes)));
        nodes[(top->>'test')::int] := nodes[(top->>'test')::int] || jsonb_build_object('alt', cardinality(nodes) + 1);
      end if;
      if word = 'else' then
        top := top - 'test' || jsonb '{"else": true}';
      else
        nodes := nodes || (node || jsonb_build_object('op', 'test', 'expr', case when coalesce(top->>'subject',
          '') <> ''
          then format('(%s) in (%s)', top->>'subject', expr) else expr end));
        top := top || jsonb_build_object('test', cardinality(nodes));
      end if;
      stack[cardinality(stack)] := top;

    when word in ('while', 'loop') then
      top := jsonb_build_object('what', 'loop', 'again', cardinality(nodes) + 1, 'outs', jsonb '[]', 'at', places[i],
        'label', loop_label);
      loop_label := null;
      if word = 'while' then
        nodes := nodes || (node || jsonb_build_object('op', 'test', 'expr', expr));
        top := top || jsonb_build_object('test', cardinality(nodes));
      end if;
      stack := stack || top;
    when word = 'for' and low[i + 1] = 'each' then
      nodes := nodes || (node || pgflow.flow_each_(body, tokens, low, places, i, j, variables));
    when word = 'for' then
      target := pgflow.flow_name_(tokens[i + 1]);
      if target is null or low[i + 2] <> 'in' or low[i + 3] in ('reverse', 'execute') or 'by' = any(low[i : j])
        and pgflow.flow_until_(low, i, '{..}') is not null
      then
        perform pgflow.flow_fail_(body, places[i],
          'a loop with steps in it is written as: for variable in query loop, or in 1 .. 10 loop');
      end if;
      m := pgflow.flow_until_(low, i, '{..}');
      expr := pgflow.flow_cut_(body, places, i + 3, j);
      if m < j then
        expr := format('select pg_catalog.generate_series(%s, %s)',
          pgflow.flow_cut_(body, places, i + 3, m),
          pgflow.flow_cut_(body, places, m + 1, j));
        if not pgflow.flow_has_(variables, target) then
          variables := variables || jsonb_build_object('name', target, 'type', 'int');
        end if;
      end if;
      if not exists (select from jsonb_array_elements(variables) v where v->>'name' = target
        and not v ? 'is_local') then
        perform pgflow.flow_fail_(body, places[i + 1],
          format('%s is not declared with a type that can be kept between steps', target),
          'Declare it as the row type of a table, a scalar or jsonb; a record lives within a step.');
      end if;
      nodes := nodes || (node || jsonb_build_object('op', 'rows', 'name', 'for ' || target, 'code',
        format(case when pgflow.flow_is_row_((select v->>'type' from jsonb_array_elements(variables) v
          where v->>'name' = target), schemas)
          then 'return (select coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(_q)), ''[]'') from (%s) _q);'
          else 'return (select coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(_q._x)), ''[]'') from (%s) '
            '_q(_x));' end,
          expr)));
      nodes := nodes || jsonb_build_object('op', 'next', 'opts', jsonb_build_object('var', target, 'rows',
        cardinality(nodes)));
      stack := stack || jsonb_build_object('what', 'loop', 'again', cardinality(nodes), 'test', cardinality(nodes),
        'outs', jsonb '[]', 'at', places[i], 'label', loop_label);
      loop_label := null;
    when word in ('exit', 'continue') then
      m := coalesce(pgflow.flow_until_(low, i, '{when}'), j);
      name := case when m > i + 1 then pgflow.flow_name_(tokens[i + 1]) end;
      k := (select max(x.n) from unnest(stack) with ordinality as x (block, n)
        where x.block->>'what' = 'loop' and (name is null or x.block->>'label' = name));
      if k is null or m > i + 2 then
        perform pgflow.flow_fail_(body, places[i], format('%s stands in no loop%s', word,
          coalesce(' with the label ' || name, '')));
      end if;
      if m < j then
        nodes := nodes || (node || jsonb_build_object('op', 'test', 'expr',
          pgflow.flow_cut_(body, places, m + 1, j), 'alt', cardinality(nodes) + 3));
      end if;
      nodes := nodes || jsonb '{"op": "goto"}';
      if word = 'exit' then
        stack[k] := jsonb_set(stack[k], '{outs}', stack[k]->'outs' || to_jsonb(cardinality(nodes)));
      else
        nodes[cardinality(nodes)] := nodes[cardinality(nodes)] || jsonb_build_object('next', stack[k]->'again');
      end if;

    when word = 'exception' then
      if stack <> '{}' or handler is not null then
        perform pgflow.flow_fail_(body, places[i], 'exception stands at the end of the whole text, once');
      end if;
      nodes := nodes || jsonb '{"op": "return", "code": "return null;", "line": 1}';
      handler := cardinality(nodes) + 1;
      if low[i + 1] = 'when' then
        if low[i + 2 : i + 3] <> '{others,then}' then
          perform pgflow.flow_fail_(body, places[i + 1],
            'a handler takes every error: exception, or exception when others then',
            'The variable error has sqlstate, message and step: decide by an if.');
        end if;
        j := i + 3;
      end if;
    when word = 'end' then
      if stack = '{}' then
        if low[i + 1] not in (';') and i < n then
          perform pgflow.flow_fail_(body, places[i], format('end %s closes nothing', low[i + 1]));
        end if;
        nodes := nodes || jsonb '{"op": "return", "code": "return null;", "line": 1}';
        is_over := true;
        i := coalesce(j, i) + 1;
        continue;
      end if;
      if low[i + 1] is distinct from top->>'what' then
        perform pgflow.flow_fail_(body, places[i], format('%s is closed by end %1$s', top->>'what'));
      end if;
      stack := stack[1 : cardinality(stack) - 1];
      if top->>'what' = 'loop' then
        nodes := nodes || jsonb_build_object('op', 'goto', 'next', top->'again');
      elsif top->>'what' = 'case' and top ? 'test' then
        nodes := nodes || jsonb '{"op": "goto"}';
        top := jsonb_set(top, '{outs}', top->'outs' || to_jsonb(cardinality(nodes)));
        nodes[(top->>'test')::int] := nodes[(top->>'test')::int] || jsonb_build_object('alt', cardinality(nodes) + 1);
        nodes := nodes || jsonb_build_object('op', 'step', 'name',
          'line ' || pgflow.flow_line_(body, places[i]), 'at', places[i], 'opts', jsonb '{}',
          'code', 'raise exception using errcode = ''20000'', message = ''no branch of the case fits'';');
        top := top - 'test';
      end if;
      if top ? 'test' then
        nodes[(top->>'test')::int] := nodes[(top->>'test')::int] || jsonb_build_object('alt', cardinality(nodes) + 1);
      end if;
      for k in select e::int from jsonb_array_elements(top->'outs') e loop
        nodes[k] := nodes[k] || jsonb_build_object('next', cardinality(nodes) + 1);
      end loop;

    when word = 'wait' then
      nodes := nodes || (node || pgflow.flow_wait_(body, tokens, low, places, i, j, variables));
    when word in ('sleep', 'run', 'set', 'emit', 'return') then
      nodes := nodes || (node || pgflow.flow_word_(word, body, tokens, low, places, i, j, variables));
    when word = 'raise' then
      if handler is null then
        perform pgflow.flow_fail_(body, places[i], 'raise alone is for the handler of an exception');
      end if;
      nodes := nodes || jsonb '{"op": "rethrow", "name": "raise"}';
    when word = 'begin' then
      perform pgflow.flow_fail_(body, places[i], 'a block with something durable in it needs no begin and end',
        'A block with variables or a handler of its own is part of one step.');
    else
      perform pgflow.flow_fail_(body, places[i], format('%s is not part of the language yet', tokens[i]),
        'docs/how-to/sql-workflows.md lists its words.');
    end case;
    i := j + 1;
  end loop;
  if not is_over then
    top := stack[cardinality(stack)];
    perform pgflow.flow_fail_(body, coalesce((top->>'at')::int, length(body)),
      coalesce((top->>'what') || ' is not closed by end ' || (top->>'what'), 'the last end is missing'));
  end if;

  for name, node in select e.key, e.value from jsonb_each(undos) e loop
    nodes := nodes || node;
    k := (select x.n from unnest(nodes) with ordinality as x (node, n) where x.node->>'op' = 'step'
      and x.node->>'name' = name);
    nodes[k] := jsonb_set(nodes[k], '{opts,undo}', to_jsonb(cardinality(nodes)));
  end loop;
  for k in 1 .. cardinality(nodes) loop
    node := nodes[k];
    if node ? 'expr' then
      node := node || jsonb_build_object('code', format(case when node ? 'is_time'
        then 'return pg_catalog.to_jsonb(pg_catalog.date_part(''epoch'', (%s)));'
        else 'return pg_catalog.to_jsonb(coalesce((%s)::boolean, false));' end, node->>'expr'));
    end if;
    if node ? 'at' and not node ? 'line' then
      node := node || jsonb_build_object('line', pgflow.flow_line_(body, (node->>'at')::int));
    end if;
    nodes[k] := node - '{expr,is_time,at,from}'::text[] || jsonb_build_object('next', coalesce((node->>'next')::int,
      k + 1));
  end loop;
  return jsonb_build_object('workflow', workflow, 'parameters', parameters, 'handler', handler,
    'nodes', to_jsonb(nodes), 'signature', signature, 'body', body, 'schemas', to_jsonb(schemas),
    'variables', variables || '[{"name": "timed_out", "type": "boolean"}, {"name": "error", "type": "jsonb"}]');
end
$$;
comment on function pgflow.compile_workflow(text, text, name[])
  is 'Compiles a workflow in SQL without making it: {workflow, parameters, variables, nodes, handler}; refuses '
     '(PF003) with line and column';
--! grant compile_workflow to pgflow_client, pgflow_operator
