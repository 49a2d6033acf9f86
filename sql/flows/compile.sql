-- The compiler: the text of a workflow becomes a list of nodes, which `advance` walks (`sql/flows/work.sql`), and one
-- function of plpgsql, which has the SQL of all nodes. `sql/flows/words.sql` has a function for each word.
--
--   step    a transaction's worth of SQL; its variables afterwards are its result
--   set     what `declare` initializes             test    a condition: `next` if it holds, else `alt`
--   rows    the rows of a loop, read once          next    the next of them, or `alt`
--   wait    for a signal                           sleep   for so many seconds
--   event   for an event                           ask     for the answer at a gate
--   lock    for a lock, or `alt` if none came      unlock  gives it back
--   run     a child                                each    a child for each row
--   note    the state of the run, or a value of a stream
--   spend   out of the budget of the run           rethrow the error that the handler has
--   try     a block, with its handler as `alt`      leave   its end
--   goto    to `next`                              return  the result of the run
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
  label text := pgflow.flow_quoted_(program->>'workflow');
  all_of text;
  other_types text;
  assigned text;
  kept_out text[];
  made text;
  node record;
begin
  -- A variable of a plain type is an expression, which costs a twentieth of a query.
  select string_agg(format('%s %s%s;', k.quoted, v->>'type', ' := ' || k.plain), ' ' order by n),
    string_agg(format('%s %s', k.quoted, v->>'type'), ', ' order by n) filter (where k.is_kept and k.plain is null),
    string_agg(format('%s.%s := _l.%2$s;', label, k.quoted), ' ' order by n)
      filter (where k.is_kept and k.plain is null),
    array_agg(format('%L, %s.%s', v->>'name', label, k.quoted) order by n) filter (where k.is_kept)
  into all_of, other_types, assigned, kept_out
  from jsonb_array_elements(program->'variables') with ordinality as e (v, n)
  cross join lateral (select not v ? 'is_local' as is_kept, pgflow.flow_quoted_(v->>'name') as quoted, case
    when program->'schemas' ? 'pg_catalog' then null -- else no other type has such a name
    when lower(v->>'type') = 'jsonb' then format('nullif(_in->%L, ''null'')', v->>'name')
    when lower(v->>'type') in ('smallint', 'int', 'integer', 'bigint', 'real', 'double precision', 'numeric', 'boolean',
      'text', 'date', 'timestamptz', 'uuid') then format('_in->>%L', v->>'name') end as plain) k;
  made := format('<<%s>> declare _l record; %s %s begin %s %s case _node', label, all_of,
    case when program->>'handler' is null and not program->'nodes' @> '[{"op": "try"}]'
      then 'sqlerrm text; sqlstate text;'
      else format('sqlerrm text := %s.error->>''message''; sqlstate text := %1$s.error->>''sqlstate'';', label) end,
    format('select * into _l from pg_catalog.jsonb_to_record(_in) as _j(%s); ' || assigned, other_types),
    case when program ? 'found' then 'found := coalesce((_in->>''found'')::boolean, false);' end);
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
    || format(e'\nend case; return %s%s; end', case when program ? 'found' then
      'pg_catalog.jsonb_build_object(''found'', found) operator(pg_catalog.||) ' else '' end, (
      -- A function takes a hundred arguments.
      select string_agg(format('pg_catalog.jsonb_build_object(%s)', array_to_string(kept_out[n : n + 49], ', ')),
        ' operator(pg_catalog.||) ' order by n)
      from generate_series(1, cardinality(kept_out), 50) n));
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
  select 1 + length(h.head) - length(replace(h.head, e'\n', '')) from (select left(body, place - 1) as head) h
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
  body text, low text[], places int[], i int, out opts jsonb, out stop int
)
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  word text;
  seconds numeric;
begin
  opts := '{}';
  stop := i + 1;
  while low[stop] in ('retry', 'every', 'timeout') and not opts ? low[stop] loop
    word := low[stop];
    if word = 'retry' then
      if low[stop + 1] !~ e'^\\d{1,6}$' then
        perform pgflow.flow_fail_(body, places[stop + 1], 'retry takes a number of further tries');
      end if;
      opts := opts || jsonb_build_object('retry', low[stop + 1]::int);
    else
      begin
        seconds := extract(epoch from replace(btrim(
          case when left(low[stop + 1], 1) = '''' then low[stop + 1] end, ''''), '''''', '''')::interval);
      exception when data_exception then
        seconds := null;
      end;
      if coalesce(seconds, -1) < (word = 'timeout')::int * 0.001 or seconds > 2000000 then
        perform pgflow.flow_fail_(body, places[stop + 1], format('%s takes an interval in quotes: %1$s ''10 s''', word));
      end if;
      opts := opts || jsonb_build_object(word, trim_scale(seconds));
    end if;
    stop := stop + 2;
  end loop;
  if low[stop] is distinct from ':' then
    perform pgflow.flow_fail_(body, coalesce(places[stop], places[i]),
      'a step begins as: name [timeout ''5 s''] [retry 3 [every ''10 s'']]:');
  end if;
end
$$;
comment on function pgflow.flow_label_(text, text[], int[], int)
  is 'Options of the step that the label at a token begins, and the token of its colon';

create or replace function pgflow.flow_declared_(
  body text, low text[], places int[], workflow text, parameters jsonb, schemas name[], out variables jsonb,
  out nodes jsonb, out begins int
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  code text := '';
  line int := 1;
  wanted int;
  variable jsonb;
begin
  begins := 1;
  variables := parameters;
  if low[1] = 'declare' then
    begins := pgflow.flow_until_(array_replace(low, ';', ','), 2, '{begin}');
    if begins is null then
      perform pgflow.flow_fail_(body, 1, 'declare is not followed by begin');
    end if;
    variables := variables || pgflow.flow_variables_(body, low, places, 2, begins, schemas);
  end if;
  if low[begins] is distinct from 'begin' then
    perform pgflow.flow_fail_(body, coalesce(places[begins], 1), 'the text begins with declare or begin');
  elsif exists (select from jsonb_array_elements(parameters) p, jsonb_array_elements(variables) v
    where p->>'name' = v->>'name' and p <> v)
  then
    perform pgflow.flow_fail_(body, 1, 'a variable has the name of a parameter');
  end if;
  -- One node sets them all, each on its own line.
  for variable in select v from jsonb_array_elements(variables) v where v ? 'value' loop
    if parameters @> jsonb_build_array(variable) then
      code := code || format(' if not pg_catalog.jsonb_exists(_in, %L) then %s.%s := %s; end if;',
        variable->>'name', pgflow.flow_quoted_(workflow), pgflow.flow_quoted_(variable->>'name'), variable->>'value');
    else
      wanted := pgflow.flow_line_(body, (variable->>'at')::int);
      code := code || repeat(e'\n', greatest(0, wanted - line)) || format(' %s.%s := %s;',
        pgflow.flow_quoted_(workflow), pgflow.flow_quoted_(variable->>'name'), variable->>'value');
    end if;
    line := 1 + length(code) - length(replace(code, e'\n', ''));
  end loop;
  nodes := case when code = '' then '[]' else jsonb_build_array(jsonb_build_object('op', 'set', 'name', 'declare',
    'code', code, 'line', 1)) end;
end
$$;
comment on function pgflow.flow_declared_(text, text[], int[], text, jsonb, name[])
  is 'Variables of a workflow, the node that sets them, and the token at which its text begins';

create or replace function pgflow.flow_gather_(step jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if stop is null or low[stop] <> ';' then
    perform pgflow.flow_fail_(body, places[i], 'the statement does not end with ;');
  end if;
  for j in i .. stop loop
    if low[j] in ('commit', 'rollback', 'savepoint') and low[j + 1] in (';', 'and', 'to', 'work', 'transaction')
      and (j = i or low[j - 1] in (';', 'then', 'else', 'loop', 'begin'))
    then
      perform pgflow.flow_fail_(body, places[j], format('%s is not for a step: pgflow commits it', low[j]));
    end if;
  end loop;
  if low[i] = 'get' and low[i + 1] = 'stacked' then
    perform pgflow.flow_fail_(body, places[i], 'a handler between steps has no diagnostics',
      'The variable error has message, sqlstate, detail, type, step and line; sqlerrm and sqlstate are there too.');
  end if;
  step := coalesce(step, jsonb_build_object('op', 'step', 'name', 'line ' || pgflow.flow_line_(body, places[i])));
  if not step ? 'at' then
    step := step || jsonb_build_object('at', places[i]);
  end if;
  -- With the blanks and comments between two statements.
  return step || jsonb_build_object('code', substr(body, (step->>'at')::int,
    places[stop] + 1 - (step->>'at')::int));
end
$$;
comment on function pgflow.flow_gather_(jsonb, text, text[], int[], int, int)
  is 'The step at hand with one more statement of SQL';

create or replace function pgflow.flow_finish_(c jsonb, body text)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  undo record;
  step int;
begin
  for undo in select e.key as step, e.value as node from jsonb_each(c->'undos') e loop
    step := pgflow.flow_step_(c, undo.step);
    c := pgflow.flow_add_(c, 'nodes', undo.node);
    c := jsonb_set(c, array['nodes', (step - 1)::text, 'opts'], coalesce(c->'nodes'->(step - 1)->'opts', '{}')
      || jsonb_build_object('undo', pgflow.flow_count_(c)));
  end loop;
  return (
    select jsonb_agg(m.node || case
      when m.node->>'op' = 'step' and c->'nodes'->((m.node->>'next')::int - 1)->>'op' in (
        'return', 'wait', 'sleep', 'event', 'ask', 'run', 'each')
      then jsonb_build_object('opts', coalesce(m.node->'opts', '{}') || '{"leads": true}') else '{}' end order by e.n)
    from jsonb_array_elements(c->'nodes') with ordinality as e (node, n)
    cross join lateral (
      select case when e.node ? 'expr' then jsonb_build_object('opts', jsonb_build_object('if', left(e.node->>'expr', 100)),
        'code', format('return pg_catalog.to_jsonb(coalesce((%s)::boolean, false));', e.node->>'expr')) else '{}' end
      || case when e.node ? 'at' then jsonb_build_object('line', pgflow.flow_line_(body, (e.node->>'at')::int))
        else '{}' end
      || jsonb_build_object('next', n + 1) || e.node - '{expr,at,from}'::text[] as node
    ) m
  );
end
$$;
comment on function pgflow.flow_finish_(jsonb, text)
  is 'The nodes of a workflow with its compensations, each with its line, its code and the node after it';

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
  parameters jsonb;
  low text[];
  places int[];
  c jsonb; -- what is compiled so far: see sql/flows/words.sql
  i int; -- the token at hand
  stop int;
  step jsonb; -- that is being gathered
  span record;
  name text;
begin
  select jsonb_build_object('workflow', s.workflow, 'schemas', schemas, 'stack', jsonb '[]', 'undos', jsonb '{}'),
    s.variables
  into c, parameters from pgflow.flow_signature_(signature, schemas) s;
  select t.low, t.places || length(body) + 1 into low, places from pgflow.flow_tokens_(body) t;
  select c || jsonb_build_object('variables', d.variables, 'nodes', d.nodes), d.begins + 1 into c, i
  from pgflow.flow_declared_(body, low, places, c->>'workflow', parameters, schemas) d;

  while i <= cardinality(low) loop
    if c ? 'is_over' then
      perform pgflow.flow_fail_(body, places[i], 'nothing follows the last end');
    elsif low[i] = ';' then
      i := i + 1;
      continue;
    end if;
    select s.stop, s.is_durable into span from pgflow.flow_span_(low, i) s;
    if low[i] = '<<' and low[i + 2] = '>>' then
      select s.stop, s.is_durable into span from pgflow.flow_span_(low, i + 3) s;
      if span.is_durable or span.stop is null then
        c := c || jsonb_build_object('label', pgflow.flow_name_(low[i + 1]));
        i := i + 3;
        continue;
      end if;
    end if;
    if pgflow.flow_is_sql_(low, i, span.is_durable) then
      step := pgflow.flow_gather_(step, body, low, places, i, span.stop);
      i := span.stop + 1;
      continue;
    end if;

    -- All else ends a step.
    if step is not null then
      if not step ? 'code' then
        perform pgflow.flow_fail_(body, (step->>'from')::int, format('the step %s has no statement', step->>'name'),
          'A label stands before SQL: waits, runs and returns end a step.');
      end if;
      c := pgflow.flow_add_(c, 'nodes', step);
      step := null;
    end if;
    if pgflow.flow_is_label_(low, i) then
      name := pgflow.flow_name_(low[i]);
      if pgflow.flow_step_(c, name) is not null then
        perform pgflow.flow_fail_(body, places[i], format('the step %s is there already', name),
          'The names of steps are how you find them: each is given once.');
      elsif octet_length(name) > 200 then
        perform pgflow.flow_fail_(body, places[i], 'the name of a step has at most 200 bytes');
      end if;
      select jsonb_build_object('op', 'step', 'name', name, 'from', places[i], 'opts', h.opts), h.stop + 1 into step, i
      from pgflow.flow_label_(body, low, places, i) h;
      continue;
    end if;
    stop := pgflow.flow_stop_(low, i);
    if stop is null then
      perform pgflow.flow_fail_(body, places[i], format('%s is not complete', low[i]), case
        when low[i] in ('if', 'elsif', 'elseif', 'when') then 'then is missing.'
        when low[i] in ('while', 'for', 'lock') then 'loop is missing.' when low[i] = 'case' then 'when is missing.'
        else 'It does not end with ;' end);
    end if;
    c := pgflow.flow_place_word_(c, body, low, places, i, stop);
    i := stop + 1;
  end loop;
  if not c ? 'is_over' then
    name := nullif(c->'stack'->-1->>'what', 'handler');
    perform pgflow.flow_fail_(body, coalesce((c->'stack'->-1->>'at')::int, length(body)),
      coalesce(name || ' is not closed by ' || pgflow.flow_close_(name), 'the last end is missing'));
  end if;
  return case when 'found' = any(low) then jsonb '{"found": true}' else '{}' end
    || jsonb_build_object('workflow', c->'workflow', 'parameters', parameters, 'handler', c->'handler',
    'nodes', pgflow.flow_finish_(c, body), 'signature', signature, 'body', body, 'schemas', c->'schemas', 'variables',
    (c->'variables') || '[{"name": "timed_out", "type": "boolean"}, {"name": "error", "type": "jsonb"}]');
end
$$;
comment on function pgflow.compile_workflow(text, text, name[])
  is 'Compiles a workflow in SQL without making it: {workflow, parameters, variables, nodes, handler}; refuses '
     '(PF003) with line and column';
--! grant compile_workflow to pgflow_client, pgflow_operator
