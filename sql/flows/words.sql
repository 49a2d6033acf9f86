-- The words of the language, a function each. One takes what is compiled so far (`c`), the text with its tokens, and the
-- first and the last token of its statement, or of the head of its block. It answers `c` with the nodes that it adds.
-- A new word is a function here, one line in `flow_place_word_`, and, if it stands between statements of SQL, one in
-- `flow_is_word_`.
--
--   c   {workflow, schemas, variables, nodes, stack, undos, handler, label, is_over}
--
-- `stack` has the blocks that are open: {what: if, case, loop, lock, block or handler; try: node of a block; from:
-- where a handler begins; test: node whose `alt` is missing;
-- outs: nodes whose `next` is the end; again: where a loop begins; label, subject, at}.

create or replace function pgflow.flow_add_(c jsonb, list text, item jsonb)
returns jsonb
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_set(c, array[list], (c->list) || jsonb_build_array(item))
$$;
comment on function pgflow.flow_add_(jsonb, text, jsonb) is 'Adds a node, or opens a block';

create or replace function pgflow.flow_set_(c jsonb, node int, key text, value int)
returns jsonb
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_set(c, array['nodes', (node - 1)::text, key], to_jsonb(value))
$$;
comment on function pgflow.flow_set_(jsonb, int, text, int) is 'Says of a node which one comes after it';

create or replace function pgflow.flow_count_(c jsonb)
returns int
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_array_length(c->'nodes')
$$;
comment on function pgflow.flow_count_(jsonb) is 'Number of nodes so far';

create or replace function pgflow.flow_step_(c jsonb, name text)
returns int
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select n::int from jsonb_array_elements(c->'nodes') with ordinality as e (node, n)
  where node->>'op' = 'step' and node->>'name' = name
$$;
comment on function pgflow.flow_step_(jsonb, text) is 'The node of the step of this name; null if there is none';

create or replace function pgflow.flow_into_(c jsonb, body text, low text[], places int[], i int, stop int)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  target text := pgflow.flow_name_(low[i + 1]);
begin
  if i = stop then
    return null;
  elsif low[i] = 'into' and i + 2 = stop and not pgflow.flow_has_(c->'variables', target) then
    perform pgflow.flow_fail_(body, places[i + 1], format('the variable %s is not declared', low[i + 1]));
  elsif low[i] <> 'into' or i + 2 <> stop then
    perform pgflow.flow_fail_(body, places[i], format('%s is not understood', low[i]),
      'The last that a statement says is: into a declared variable.');
  end if;
  return target;
end
$$;
comment on function pgflow.flow_into_(jsonb, text, text[], int[], int, int)
  is 'The variable that the end of a statement names, null if it names none';

create or replace function pgflow.flow_parts_(body text, low text[], places int[], i int, stop int, words text[])
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  parts jsonb := '{}';
  last int;
begin
  -- Each word once, in the order in which they are written down.
  while low[i] = any(words) and i < stop loop
    last := coalesce(pgflow.flow_until_(low, i + 1, words || '{into}'::text[]), stop);
    last := least(last, stop);
    if last = i + 1 or parts ? low[i] then
      perform pgflow.flow_fail_(body, places[i], format('%s is not understood', low[i]));
    end if;
    parts := parts || jsonb_build_object(low[i], pgflow.flow_cut_(body, places, i + 1, last));
    i := last;
  end loop;
  return parts || jsonb_build_object('at', i);
end
$$;
comment on function pgflow.flow_parts_(text, text[], int[], int, int, text[])
  is 'The expressions behind words such as timeout, up to into or the end, and the token at which they end';

create or replace function pgflow.flow_seconds_(expr text)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case when expr is null then 'null'
    else format('pg_catalog.date_part(''epoch'', (%s)::interval + pg_catalog.now() - pg_catalog.now())', expr) end
$$;
comment on function pgflow.flow_seconds_(text) is 'The expression for the seconds of an interval';

create or replace function pgflow.flow_value_(expr text)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select format('return (select pg_catalog.to_jsonb(_q.x) from (select %s as x) _q);', expr)
$$;
comment on function pgflow.flow_value_(text) is 'The statement that answers the value of an expression';

-- ---------------------------------------------------------------- blocks

create or replace function pgflow.flow_undo_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  name text := pgflow.flow_name_(low[i + 1]);
  span record;
begin
  if low[i + 2] is distinct from ':' or name is null then
    perform pgflow.flow_fail_(body, places[i], 'a compensation is written as undo step: statement;');
  elsif pgflow.flow_step_(c, name) is null then
    perform pgflow.flow_fail_(body, places[i + 1], format('undo %s: there is no such step before it', name));
  elsif c->'undos' ? name then
    perform pgflow.flow_fail_(body, places[i + 1], format('the step %s has an undo already', name));
  end if;
  select s.stop, s.is_durable into span from pgflow.flow_span_(low, i + 3) s;
  if span.stop is null or low[span.stop] <> ';' or span.stop < i + 4 then
    perform pgflow.flow_fail_(body, places[i], 'the statement does not end with ;');
  elsif span.is_durable then
    perform pgflow.flow_fail_(body, places[i + 3], 'a compensation is one step: nothing durable can be in it');
  end if;
  return jsonb_set(c, array['undos', name], jsonb_build_object('op', 'step', 'name', 'undo ' || name, 'at',
    places[i + 3], 'code', substr(body, places[i + 3], places[span.stop] - places[i + 3] + 1),
    'opts', jsonb '{"retry": 20, "every": 1}'));
end
$$;
comment on function pgflow.flow_undo_(jsonb, text, text[], int[], int, int) is 'undo: the compensation of a step';

create or replace function pgflow.flow_if_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'test', 'at', places[i], 'expr',
    pgflow.flow_cut_(body, places, i + 1, stop)));
  return pgflow.flow_add_(c, 'stack', jsonb_build_object('what', 'if', 'test', pgflow.flow_count_(c), 'outs', jsonb '[]',
    'at', places[i]));
end
$$;
comment on function pgflow.flow_if_(jsonb, text, text[], int[], int, int) is 'if: begins a block';

create or replace function pgflow.flow_case_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if (select bool_or(pgflow.flow_is_label_(low, x)) from generate_series(i + 1, stop + 1) x) then
    perform pgflow.flow_fail_(body, places[i], 'case is not complete', 'when is missing.');
  end if;
  return pgflow.flow_add_(c, 'stack', jsonb_build_object('what', 'case', 'outs', jsonb '[]', 'at', places[i], 'subject',
    pgflow.flow_cut_(body, places, i + 1, stop + 1)));
end
$$;
comment on function pgflow.flow_case_(jsonb, text, text[], int[], int, int) is 'case: begins a block';

create or replace function pgflow.flow_end_branch_(c jsonb)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  test int := (c->'stack'->-1->>'test')::int;
begin
  if test is null then
    return c;
  end if;
  c := pgflow.flow_add_(c, 'nodes', '{"op": "goto"}');
  c := jsonb_set(c, '{stack,-1,outs}', (c->'stack'->-1->'outs') || to_jsonb(pgflow.flow_count_(c)));
  return pgflow.flow_set_(c, test, 'alt', pgflow.flow_count_(c) + 1) #- '{stack,-1,test}';
end
$$;
comment on function pgflow.flow_end_branch_(jsonb) is 'Ends a branch of an if, a case or a handler';

create or replace function pgflow.flow_branch_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  top jsonb := c->'stack'->-1;
  expr text := pgflow.flow_cut_(body, places, i + 1, stop);
  is_handler boolean := coalesce(top->>'what', '') = 'handler';
begin
  if top is null or top ? 'else'
    or not top->>'what' = any(case low[i] when 'when' then '{case,handler}' when 'else' then '{if,case}' else '{if}'
      end::text[])
    or is_handler and not top ? 'test' and pgflow.flow_count_(c) >= (top->>'from')::int
  then
    perform pgflow.flow_fail_(body, places[i], format('%s belongs to no %s', low[i],
      case low[i] when 'when' then 'case' else 'if' end));
  end if;
  c := pgflow.flow_end_branch_(c);
  if low[i] = 'else' or is_handler and low[i + 1 : stop - 1] = '{others}' then
    return jsonb_set(c, '{stack,-1,else}', 'true');
  end if;
  c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'test', 'at', places[i]) || case
    -- Only plpgsql itself knows the names of conditions.
    when is_handler then jsonb_build_object('opts', jsonb_build_object('if', left('when ' || expr, 100)), 'code', format('begin raise exception using message = ''-'', errcode = '
      'coalesce(%s.error->>''sqlstate'', ''P0001''); exception when %s then return ''true''; '
      'when others or query_canceled or assert_failure then return ''false''; end;',
      pgflow.flow_quoted_(c->>'workflow'), expr))
    when coalesce(top->>'subject', '') <> '' then jsonb_build_object('expr', format('(%s) in (%s)', top->>'subject',
      expr))
    else jsonb_build_object('expr', expr) end);
  return jsonb_set(c, '{stack,-1,test}', to_jsonb(pgflow.flow_count_(c)));
end
$$;
comment on function pgflow.flow_branch_(jsonb, text, text[], int[], int, int)
  is 'elsif, else, and when of a case or a handler: the next branch';

create or replace function pgflow.flow_loop_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  top jsonb := jsonb_build_object('what', 'loop', 'again', pgflow.flow_count_(c) + 1, 'outs', jsonb '[]', 'at',
    places[i], 'label', c->'label');
begin
  if low[i] = 'while' then
    c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'test', 'at', places[i], 'expr',
      pgflow.flow_cut_(body, places, i + 1, stop)));
    top := top || jsonb_build_object('test', pgflow.flow_count_(c));
  end if;
  return pgflow.flow_add_(c - 'label', 'stack', top);
end
$$;
comment on function pgflow.flow_loop_(jsonb, text, text[], int[], int, int) is 'loop and while: begin a block';

create or replace function pgflow.flow_for_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  target text := pgflow.flow_name_(low[i + 1]);
  dots int := pgflow.flow_until_(low, i, '{..}');
  expr text := pgflow.flow_cut_(body, places, i + 3, stop);
  type text;
begin
  if target is null or low[i + 2] <> 'in' or low[i + 3] in ('reverse', 'execute')
    or 'by' = any(low[i : stop]) and dots is not null
  then
    perform pgflow.flow_fail_(body, places[i],
      'a loop with steps in it is written as: for variable in query loop, or in 1 .. 10 loop');
  end if;
  if dots < stop then
    expr := format('select pg_catalog.generate_series(%s, %s)', pgflow.flow_cut_(body, places, i + 3, dots),
      pgflow.flow_cut_(body, places, dots + 1, stop));
    if not pgflow.flow_has_(c->'variables', target) then
      c := pgflow.flow_add_(c, 'variables', jsonb_build_object('name', target, 'type', 'int'));
    end if;
  end if;
  select v->>'type' into type from jsonb_array_elements(c->'variables') v
  where v->>'name' = target and not v ? 'is_local';
  if type is null then
    perform pgflow.flow_fail_(body, places[i + 1],
      format('%s is not declared with a type that can be kept between steps', target),
      'Declare it as the row type of a table, a scalar or jsonb; a record lives within a step.');
  end if;
  c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'rows', 'at', places[i], 'name', 'for ' || target, 'code',
    -- As rows of a WITH, which a change may return too.
    format(case when pgflow.flow_is_row_(type, array(select jsonb_array_elements_text(c->'schemas'))::name[])
      then 'with _q as (%s) select coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(_q)), ''[]'') as x into _l from _q;'
      else 'with _q(_x) as (%s) select coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(_q._x)), ''[]'') as x into _l '
        'from _q;' end || ' return _l.x;', expr)));
  c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'next', 'opts', jsonb_build_object('var', target, 'rows',
    pgflow.flow_count_(c))));
  return pgflow.flow_add_(c - 'label', 'stack', jsonb_build_object('what', 'loop', 'again', pgflow.flow_count_(c),
    'test', pgflow.flow_count_(c), 'outs', jsonb '[]', 'at', places[i], 'label', c->'label'));
end
$$;
comment on function pgflow.flow_for_(jsonb, text, text[], int[], int, int) is 'for: begins a loop over rows or numbers';

create or replace function pgflow.flow_lock_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  ends int := least(coalesce(pgflow.flow_until_(low, i, '{timeout}'), stop), stop);
  parts jsonb := pgflow.flow_parts_(body, low, places, ends, stop, '{timeout}');
begin
  if ends = i + 1 or (parts->>'at')::int <> stop then
    perform pgflow.flow_fail_(body, places[i], 'a lock is written as: lock key [timeout ''1 min''] loop ... end loop;');
  end if;
  c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'lock', 'name', 'lock', 'at', places[i], 'code',
    format('return pg_catalog.jsonb_build_object(''ask'', (%s)::text, ''timeout'', %s);',
      pgflow.flow_cut_(body, places, i + 1, ends), pgflow.flow_seconds_(parts->>'timeout'))));
  return pgflow.flow_add_(c - 'label', 'stack', jsonb_build_object('what', 'lock', 'lock', pgflow.flow_count_(c),
    'outs', jsonb '[]', 'at', places[i], 'label', c->'label'));
end
$$;
comment on function pgflow.flow_lock_(jsonb, text, text[], int[], int, int)
  is 'lock: begins a loop of one round, in which the run holds a lock';

create or replace function pgflow.flow_leave_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  upto int := least(coalesce(pgflow.flow_until_(low, i, '{when}'), stop), stop);
  name text := case when upto > i + 1 then pgflow.flow_name_(low[i + 1]) end;
  block record;
  given record;
begin
  select e.n::int - 1 as n, e.block->>'what' as what, e.block->'again' as again into block
  from jsonb_array_elements(c->'stack') with ordinality as e (block, n)
  where (e.block->>'what' in ('loop', 'lock') or low[i] = 'exit' and e.block->>'label' = name)
    and (name is null or e.block->>'label' = name) order by e.n desc limit 1;
  if block.n is null or upto > i + 2 then
    perform pgflow.flow_fail_(body, places[i], format('%s stands in no loop%s', low[i],
      coalesce(' with the label ' || name, '')));
  end if;
  if upto < stop then
    c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'test', 'at', places[i], 'expr',
      pgflow.flow_cut_(body, places, upto + 1, stop)));
    upto := pgflow.flow_count_(c);
  else
    upto := null;
  end if;
  -- The locks and handlers of the blocks that it leaves, the inmost first.
  for given in
    select e.block from jsonb_array_elements(c->'stack') with ordinality as e (block, n)
    where e.block->>'what' = 'lock' and e.n > block.n + 1 or e.block->>'what' = 'block' and e.n > block.n
    order by e.n desc
  loop
    c := pgflow.flow_add_(c, 'nodes', case given.block->>'what'
      when 'lock' then jsonb_build_object('op', 'unlock', 'name', 'unlock', 'opts', jsonb_build_object('lock',
        given.block->'lock'))
      else jsonb_build_object('op', 'leave', 'opts', jsonb_build_object('try', given.block->'try')) end);
  end loop;
  c := pgflow.flow_add_(c, 'nodes', '{"op": "goto"}');
  if upto is not null then
    c := pgflow.flow_set_(c, upto, 'alt', pgflow.flow_count_(c) + 1);
  end if;
  if low[i] = 'continue' and block.what = 'loop' then
    return pgflow.flow_set_(c, pgflow.flow_count_(c), 'next', block.again::int);
  end if;
  return jsonb_set(c, array['stack', block.n::text, 'outs'],
    (c->'stack'->block.n->'outs') || to_jsonb(pgflow.flow_count_(c)));
end
$$;
comment on function pgflow.flow_leave_(jsonb, text, text[], int[], int, int)
  is 'exit and continue: leave a loop, or a round of it, and give back the locks in between';

create or replace function pgflow.flow_declare_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  variable jsonb;
  code text := '';
begin
  for variable in
    select v from jsonb_array_elements(pgflow.flow_variables_(body, low, places, i + 1, stop + 1,
      array(select jsonb_array_elements_text(c->'schemas'))::name[])) v
  loop
    if pgflow.flow_has_(c->'variables', variable->>'name') then
      perform pgflow.flow_fail_(body, places[i], format('the variable %s is declared twice', variable->>'name'),
        'A block with something durable in it has no variables of the same name as those around it.');
    end if;
    c := pgflow.flow_add_(c, 'variables', variable - '{value,at}'::text[]);
    code := code || format(' %s.%s := %s;', pgflow.flow_quoted_(c->>'workflow'),
      pgflow.flow_quoted_(variable->>'name'), coalesce(variable->>'value', 'null'));
  end loop;
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'set', 'name', 'declare', 'at', places[i], 'code', code));
end
$$;
comment on function pgflow.flow_declare_(jsonb, text, text[], int[], int, int)
  is 'declare: variables of a block, which are kept with all others and set each time that it begins';

create or replace function pgflow.flow_begin_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  c := pgflow.flow_add_(c, 'nodes', '{"op": "try"}');
  return pgflow.flow_add_(c - 'label', 'stack', jsonb_build_object('what', 'block', 'try', pgflow.flow_count_(c),
    'outs', jsonb '[]', 'at', places[i], 'label', c->'label'));
end
$$;
comment on function pgflow.flow_begin_(jsonb, text, text[], int[], int, int)
  is 'begin: a block, which may have a handler of its own';

create or replace function pgflow.flow_exception_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  top jsonb := c->'stack'->-1;
begin
  if top->>'what' = 'block' then
    c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'leave', 'opts', jsonb_build_object('try', top->'try')));
    c := pgflow.flow_add_(c, 'nodes', '{"op": "goto"}');
    c := pgflow.flow_set_(c, (top->>'try')::int, 'alt', pgflow.flow_count_(c) + 1);
    return jsonb_set(c, '{stack,-1}', top || jsonb_build_object('what', 'handler', 'from', pgflow.flow_count_(c) + 1,
      'outs', (top->'outs') || to_jsonb(pgflow.flow_count_(c))));
  elsif c->'stack' <> '[]' or c ? 'handler' then
    perform pgflow.flow_fail_(body, places[i], 'exception stands at the end of a block, once');
  end if;
  c := pgflow.flow_add_(c, 'nodes', '{"op": "return", "code": "return null;", "line": 1, "opts": {"void": true}}');
  c := c || jsonb_build_object('handler', pgflow.flow_count_(c) + 1);
  return pgflow.flow_add_(c, 'stack', jsonb_build_object('what', 'handler', 'outs', jsonb '[]', 'at', places[i], 'from',
    c->'handler'));
end
$$;
comment on function pgflow.flow_exception_(jsonb, text, text[], int[], int, int)
  is 'exception: begins the handler of a block, or of the workflow';

create or replace function pgflow.flow_close_(what text)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case what when 'lock' then 'end loop' when 'block' then 'end' when 'handler' then 'end' else 'end ' || what end
$$;
comment on function pgflow.flow_close_(text) is 'Words that close a block';

create or replace function pgflow.flow_end_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  top jsonb := c->'stack'->-1;
  what text := coalesce(top->>'what', 'handler');
  is_last boolean := top is null or what = 'handler' and not top ? 'try'; -- the text is over
  number int;
begin
  if what in ('block', 'handler') then
    if low[i + 1] <> ';' and pgflow.flow_name_(low[i + 1]) is distinct from top->>'label' then
      perform pgflow.flow_fail_(body, places[i], format('end %s closes nothing', low[i + 1]));
    end if;
  elsif low[i + 1] is distinct from split_part(pgflow.flow_close_(what), ' ', 2) then
    perform pgflow.flow_fail_(body, places[i], format('%s is closed by %s', what, pgflow.flow_close_(what)));
  end if;
  if what = 'loop' then
    c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'goto', 'next', top->'again'));
  elsif what = 'block' then
    c := jsonb_set(c, array['nodes', ((top->>'try')::int - 1)::text, 'op'], '"goto"'); -- without a handler
  elsif what in ('case', 'handler') and top ? 'test' then
    c := pgflow.flow_end_branch_(c);
    top := c->'stack'->-1;
    c := pgflow.flow_add_(c, 'nodes', case what when 'handler' then '{"op": "rethrow", "name": "raise"}'
      else jsonb_build_object('op', 'step', 'name', 'line ' || pgflow.flow_line_(body, places[i]), 'at', places[i],
        'code', 'raise exception using errcode = ''20000'', message = ''no branch of the case fits'';') end);
  end if;
  if top ? 'test' then
    c := pgflow.flow_set_(c, (top->>'test')::int, 'alt', pgflow.flow_count_(c) + 1);
  end if;
  for number in select e::int from jsonb_array_elements(top->'outs') e loop
    c := pgflow.flow_set_(c, number, 'next', pgflow.flow_count_(c) + 1);
  end loop;
  if what = 'lock' then
    c := pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'unlock', 'name', 'unlock', 'opts',
      jsonb_build_object('lock', top->'lock')));
    c := pgflow.flow_set_(c, (top->>'lock')::int, 'alt', pgflow.flow_count_(c) + 1);
  elsif is_last then
    c := pgflow.flow_add_(c, 'nodes', '{"op": "return", "code": "return null;", "line": 1, "opts": {"void": true}}') || '{"is_over": true}';
  end if;
  return c #- '{stack,-1}';
end
$$;
comment on function pgflow.flow_end_(jsonb, text, text[], int[], int, int) is 'end: closes a block, or the text';

create or replace function pgflow.flow_refuse_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  case low[i]
  when 'foreach' then
    perform pgflow.flow_fail_(body, places[i], 'a loop with steps in it over an array is written as: '
      'for variable in select unnest(array) loop');
  when 'patched' then
    perform pgflow.flow_fail_(body, places[i], 'patched is not needed: a run keeps the version that it began with');
  else
    perform pgflow.flow_fail_(body, places[i], format('%s is not part of the language', low[i]),
      'docs/how-to/sql-workflows.md lists its words.');
  end case;
end
$$;
comment on function pgflow.flow_refuse_(jsonb, text, text[], int[], int, int)
  is 'Refuses (PF003) what cannot stand between steps';

-- ---------------------------------------------------------------- words that end a step

create or replace function pgflow.flow_raise_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not c ? 'handler' and not c->'stack' @> '[{"what": "handler"}]' then
    perform pgflow.flow_fail_(body, places[i], 'raise alone is for the handler of an exception');
  end if;
  return pgflow.flow_add_(c, 'nodes', '{"op": "rethrow", "name": "raise"}');
end
$$;
comment on function pgflow.flow_raise_(jsonb, text, text[], int[], int, int) is 'raise: the error that a handler has';

create or replace function pgflow.flow_return_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if low[i + 1] in ('next', 'query') then
    perform pgflow.flow_fail_(body, places[i], format('a workflow returns one value: no return %s', low[i + 1]));
  end if;
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'return', 'at', places[i]) || case
    when stop = i + 1 then '{"code": "return null;", "opts": {"void": true}}'
    else jsonb_build_object('code', pgflow.flow_value_(pgflow.flow_cut_(body, places, i + 1, stop))) end);
end
$$;
comment on function pgflow.flow_return_(jsonb, text, text[], int[], int, int) is 'return: the result of the run';

create or replace function pgflow.flow_sleep_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'sleep', 'name', 'sleep', 'at', places[i], 'code',
    format('return pg_catalog.to_jsonb(%s);', case when low[i + 1] = 'until'
      then format('pg_catalog.date_part(''epoch'', (%s)::timestamptz - pg_catalog.clock_timestamp())',
        pgflow.flow_cut_(body, places, i + 2, stop))
      else pgflow.flow_seconds_(pgflow.flow_cut_(body, places, i + 1, stop)) end)));
end
$$;
comment on function pgflow.flow_sleep_(jsonb, text, text[], int[], int, int) is 'sleep: a timer';

create or replace function pgflow.flow_wait_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  signal text := pgflow.flow_name_(low[i + 2]);
  parts jsonb;
begin
  if low[i + 2] = 'event' and low[i + 3] not in ('timeout', 'into', ';') then
    return pgflow.flow_event_(c, body, low, places, i, stop);
  elsif low[i + 1] <> 'for' or coalesce(signal, '') = '' then
    perform pgflow.flow_fail_(body, places[i],
      'a wait is written as: wait for signal [timeout ''3 days''] [into variable];');
  end if;
  parts := pgflow.flow_parts_(body, low, places, i + 3, stop, '{timeout}');
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'wait', 'name', signal, 'at', places[i], 'opts',
      jsonb_strip_nulls(jsonb_build_object('into', pgflow.flow_into_(c, body, low, places, (parts->>'at')::int, stop),
        'timeout', case when parts ? 'timeout' then true end)))
    || case when parts ? 'timeout' then jsonb_build_object('code', format(
      'return pg_catalog.jsonb_build_object(''timeout'', %s);', pgflow.flow_seconds_(parts->>'timeout'))) else '{}' end);
end
$$;
comment on function pgflow.flow_wait_(jsonb, text, text[], int[], int, int) is 'wait for: a signal, or an event';

create or replace function pgflow.flow_event_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  words constant text[] := '{matching,key,timeout}';
  ends int := coalesce(pgflow.flow_until_(low, i + 3, words || '{into}'::text[]), stop);
  parts jsonb := pgflow.flow_parts_(body, low, places, ends, stop, words);
begin
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'event', 'name', 'event', 'at', places[i], 'opts',
    jsonb_strip_nulls(jsonb_build_object('into', pgflow.flow_into_(c, body, low, places, (parts->>'at')::int, stop))),
    'code', format('return pg_catalog.jsonb_build_object(''ask'', pg_catalog.jsonb_build_array((%s)::text, (%s)::jsonb, '
      '(%s)::text), ''timeout'', %s);', pgflow.flow_cut_(body, places, i + 3, ends),
      coalesce(parts->>'matching', 'null'), coalesce(parts->>'key', 'null'),
      pgflow.flow_seconds_(parts->>'timeout'))));
end
$$;
comment on function pgflow.flow_event_(jsonb, text, text[], int[], int, int) is 'wait for event: one of the outbox';

create or replace function pgflow.flow_ask_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  closing int := pgflow.flow_until_(low, i + 3, '{)}');
  parts jsonb;
begin
  if coalesce(pgflow.flow_name_(low[i + 1]), 'policy/') ~ '^policy/' or low[i + 2] <> '(' or closing is null then
    perform pgflow.flow_fail_(body, places[i],
      'a gate is written as: ask gate(parameter => value, ...) [of approvers] [quorum 2] [timeout ''3 days''] [into v];');
  elsif octet_length(pgflow.flow_name_(low[i + 1])) > 150 then
    perform pgflow.flow_fail_(body, places[i + 1], 'the name of a gate has at most 150 bytes');
  end if;
  parts := pgflow.flow_parts_(body, low, places, closing + 1, stop, '{of,quorum,timeout}');
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'ask', 'name', pgflow.flow_name_(low[i + 1]),
    'at', places[i], 'opts', jsonb_strip_nulls(jsonb_build_object('into',
      pgflow.flow_into_(c, body, low, places, (parts->>'at')::int, stop))),
    'code', format('return pg_catalog.jsonb_build_object(''request'', %s, ''approvers'', array[%s]::text[], '
      '''quorum'', (%s)::int, ''timeout'', %s);', pgflow.flow_arguments_(body, low, places, i + 3, closing),
      parts->>'of', coalesce(parts->>'quorum', '1'), pgflow.flow_seconds_(parts->>'timeout'))));
end
$$;
comment on function pgflow.flow_ask_(jsonb, text, text[], int[], int, int) is 'ask: a gate, at which a person answers';

create or replace function pgflow.flow_run_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  closing int := pgflow.flow_until_(low, i + 3, '{)}');
begin
  if pgflow.flow_name_(low[i + 1]) is null or low[i + 2] <> '(' or closing is null then
    perform pgflow.flow_fail_(body, places[i],
      'a child is written as: run workflow(parameter => value, ...) [into declared variable];');
  end if;
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'run', 'name', pgflow.flow_name_(low[i + 1]),
    'at', places[i], 'opts', jsonb_strip_nulls(jsonb_build_object('into',
      pgflow.flow_into_(c, body, low, places, closing + 1, stop))),
    'code', format('return %s;', pgflow.flow_arguments_(body, low, places, i + 3, closing))));
end
$$;
comment on function pgflow.flow_run_(jsonb, text, text[], int[], int, int) is 'run: a child';

create or replace function pgflow.flow_each_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  -- The last `run name (`, behind the query.
  child int := (select max(x) from generate_series(i, stop) x where low[x] = 'run' and low[x + 2] = '('
    and pgflow.flow_name_(low[x + 1]) is not null);
  target text := pgflow.flow_name_(low[i + 2]);
  opts jsonb := '{"most": 100}';
  closing int := pgflow.flow_until_(low, coalesce(child, i) + 3, '{)}');
  m int := closing + 1;
begin
  if low[i + 3] is distinct from 'in' or target is null or child is null or closing is null then
    perform pgflow.flow_fail_(body, places[i], 'for each is written as: '
      'for each row in query run workflow(...) [at most 10] [into v] [on failure continue];');
  elsif pgflow.flow_has_(c->'variables', target) then
    perform pgflow.flow_fail_(body, places[i + 2],
      format('%s is a variable: give the rows of for each a name of their own', target));
  end if;
  while m < stop loop
    if low[m : m + 1] = '{at,most}' and low[m + 2] ~ e'^[1-9]\\d{0,5}$' then
      opts := opts || jsonb_build_object('most', low[m + 2]::int);
      m := m + 3;
    elsif low[m] = 'into' and pgflow.flow_has_(c->'variables', pgflow.flow_name_(low[m + 1])) then
      opts := opts || jsonb_build_object('into', pgflow.flow_name_(low[m + 1]));
      m := m + 2;
    elsif low[m : m + 2] = '{on,failure,continue}' then
      opts := opts || '{"go_on": true}';
      m := m + 3;
    else
      perform pgflow.flow_fail_(body, places[m], format('%s is not understood', low[m]),
        'Behind the workflow come: at most 10, into a declared variable, on failure continue.');
    end if;
  end loop;
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'each', 'name', pgflow.flow_name_(low[child + 1]),
    'at', places[i], 'opts', opts, 'code',
    format('with %s as (%s) select coalesce(pg_catalog.jsonb_agg(%s), ''[]'') as x into _l from %1$s; return _l.x;',
      pgflow.flow_quoted_(target), pgflow.flow_cut_(body, places, i + 4, child),
      pgflow.flow_arguments_(body, low, places, child + 3, closing))));
end
$$;
comment on function pgflow.flow_each_(jsonb, text, text[], int[], int, int) is 'for each: a child for each row';

create or replace function pgflow.flow_state_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'note', 'name', 'state', 'at', places[i], 'opts',
    jsonb '{"kind": "v"}', 'code', format('return pg_catalog.to_jsonb(%s);',
      pgflow.flow_cut_(body, places, i + 2, stop))));
end
$$;
comment on function pgflow.flow_state_(jsonb, text, text[], int[], int, int) is 'set state: how far the run is';

create or replace function pgflow.flow_emit_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  at int := (select max(x) from generate_series(i, stop) x where low[x] = 'to');
  name text := case when at = stop - 2 then pgflow.flow_name_(low[at + 1]) end;
begin
  if coalesce(name, 'state') = 'state' then
    perform pgflow.flow_fail_(body, places[i], 'a value of a stream is written as: emit value to stream;');
  end if;
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'note', 'name', name, 'at', places[i], 'opts',
    jsonb '{"kind": "e"}', 'code', pgflow.flow_value_(pgflow.flow_cut_(body, places, i + 1, at))));
end
$$;
comment on function pgflow.flow_emit_(jsonb, text, text[], int[], int, int) is 'emit: a value of a stream';

create or replace function pgflow.flow_spend_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if stop = i + 1 then
    perform pgflow.flow_fail_(body, places[i], 'what is spent is written as: spend ''{"usd": 0.04}'';');
  end if;
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'spend', 'name', 'spend', 'at', places[i], 'code',
    format('return pg_catalog.to_jsonb((%s)::jsonb);', pgflow.flow_cut_(body, places, i + 1, stop))));
end
$$;
comment on function pgflow.flow_spend_(jsonb, text, text[], int[], int, int) is 'spend: out of the budget of the run';

create or replace function pgflow.flow_publish_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  to_at int := pgflow.flow_until_(low, i + 1, '{to}');
  ends int := least(coalesce(pgflow.flow_until_(low, coalesce(to_at, i), '{key}'), stop), stop);
begin
  if to_at is null or to_at = i + 1 or ends = to_at + 1 or ends = stop - 1 then
    perform pgflow.flow_fail_(body, places[i], 'an event is written as: publish payload to topic [key key];');
  end if;
  return pgflow.flow_add_(c, 'nodes', jsonb_build_object('op', 'step', 'at', places[i],
    'name', 'line ' || pgflow.flow_line_(body, places[i]), 'code',
    format('perform pgflow.publish((%s)::text, (select pg_catalog.to_json(_q.x) from (select %s as x) _q), (%s)::text, '
      '(run->>''id'')::bigint);', pgflow.flow_cut_(body, places, to_at + 1, ends),
      pgflow.flow_cut_(body, places, i + 1, to_at),
      case when ends < stop then pgflow.flow_cut_(body, places, ends + 1, stop) else 'null' end)));
end
$$;
comment on function pgflow.flow_publish_(jsonb, text, text[], int[], int, int) is 'publish: an event, in a step of its own';

-- ---------------------------------------------------------------- which is which

create or replace function pgflow.flow_stop_(low text[], i int)
returns int
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when low[i] in ('if', 'elsif', 'elseif', 'when') then pgflow.flow_until_(low, i, '{then}')
    when low[i] in ('while', 'loop', 'lock') or low[i] = 'for' and low[i + 1] <> 'each'
      then pgflow.flow_until_(low, i, '{loop}')
    when low[i] = 'case' then pgflow.flow_until_(low, i + 1, '{when}') - 1
    when low[i] in ('else', 'exception', 'begin') then i
    when low[i] = 'declare' then pgflow.flow_until_(array_replace(low, ';', ','), i, '{begin}') - 1
    when low[i] = 'end' then (select coalesce(min(x), cardinality(low)) from generate_series(i, i + 3) x
      where low[x] = ';')
    when low[i] = 'undo' then (select s.stop from pgflow.flow_span_(low, i) s)
    else pgflow.flow_until_(low, i, '{;}') end
$$;
comment on function pgflow.flow_stop_(text[], int)
  is 'The last token of the statement at a token, or of the head of its block; null if it has none';

create or replace function pgflow.flow_place_word_(c jsonb, body text, low text[], places int[], i int, stop int)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return case
    when low[i] = 'undo' then pgflow.flow_undo_(c, body, low, places, i, stop)
    when low[i] = 'if' then pgflow.flow_if_(c, body, low, places, i, stop)
    when low[i] = 'case' then pgflow.flow_case_(c, body, low, places, i, stop)
    when low[i] in ('elsif', 'elseif', 'else', 'when') then pgflow.flow_branch_(c, body, low, places, i, stop)
    when low[i] in ('loop', 'while') then pgflow.flow_loop_(c, body, low, places, i, stop)
    when low[i] = 'for' and low[i + 1] = 'each' then pgflow.flow_each_(c, body, low, places, i, stop)
    when low[i] = 'for' then pgflow.flow_for_(c, body, low, places, i, stop)
    when low[i] = 'lock' then pgflow.flow_lock_(c, body, low, places, i, stop)
    when low[i] in ('exit', 'continue') then pgflow.flow_leave_(c, body, low, places, i, stop)
    when low[i] = 'declare' then pgflow.flow_declare_(c, body, low, places, i, stop)
    when low[i] = 'begin' then pgflow.flow_begin_(c, body, low, places, i, stop)
    when low[i] = 'exception' then pgflow.flow_exception_(c, body, low, places, i, stop)
    when low[i] = 'end' then pgflow.flow_end_(c, body, low, places, i, stop)
    when low[i] = 'raise' then pgflow.flow_raise_(c, body, low, places, i, stop)
    when low[i] = 'return' then pgflow.flow_return_(c, body, low, places, i, stop)
    when low[i] = 'sleep' then pgflow.flow_sleep_(c, body, low, places, i, stop)
    when low[i] = 'wait' then pgflow.flow_wait_(c, body, low, places, i, stop)
    when low[i] = 'ask' then pgflow.flow_ask_(c, body, low, places, i, stop)
    when low[i] = 'run' then pgflow.flow_run_(c, body, low, places, i, stop)
    when low[i] = 'set' then pgflow.flow_state_(c, body, low, places, i, stop)
    when low[i] = 'emit' then pgflow.flow_emit_(c, body, low, places, i, stop)
    when low[i] = 'spend' then pgflow.flow_spend_(c, body, low, places, i, stop)
    when low[i] = 'publish' then pgflow.flow_publish_(c, body, low, places, i, stop)
    else pgflow.flow_refuse_(c, body, low, places, i, stop) end;
end
$$;
comment on function pgflow.flow_place_word_(jsonb, text, text[], int[], int, int)
  is 'Compiles one statement that is not SQL, or the head of its block, by the word that it begins with';
