-- Looking at workflows in SQL: their pictures, and what the extension plpgsql_check finds in their steps. That knows
-- tables, columns and types, which plpgsql itself looks up only when a step runs.

create or replace function pgflow.picture_of_(node pgflow.flow_node)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select translate(w.opening, ' ', '') || '"' || replace(replace(replace(w.text, '&', '&amp;'), '"', '&quot;'), '<',
    '&lt;') || '"' || translate(w.closing, ' ', '')
  from (select case
    when node.op in ('step', 'rows') then array['[', node.name || case when node.name like 'undo %' then '' else coalesce(', retry ' || (node.opts->>'retry'), '') end
      || coalesce(', timeout ' || (node.opts->>'timeout') || ' s', ''), ']']
    when node.op = 'test' then array['{', coalesce(node.opts->>'if', '?'), '}']
    when node.op = 'next' then array['{', 'next ' || (node.opts->>'var'), '}']
    when node.op in ('run', 'each') then array['[[', case node.op when 'run' then 'run ' else 'for each: ' end || node.name,
      ']]']
    when node.op = 'wait' then array['([', 'wait for ' || node.name, '])']
    when node.op = 'ask' then array['([', 'ask ' || node.name, '])']
    when node.op = 'event' then array['([', 'wait for event', '])']
    when node.op = 'note' then array['[', case node.opts->>'kind' when 'v' then 'set state' else 'emit to ' || node.name end,
      ']']
    when node.op = 'rethrow' then array['((', 'raise', '))']
    when node.op = 'return' then array['((', 'return', '))']
    else array['[', coalesce(node.name, node.op), ']'] end as parts) p
  cross join lateral (select p.parts[1] as opening, left(p.parts[2], 100) as text, p.parts[3] as closing) w
$$;
comment on function pgflow.picture_of_(pgflow.flow_node) is 'A node in the language of Mermaid';

create or replace function pgflow.draw_workflow(workflow text, version int default null)
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  flow pgflow.flow;
  caller oid := (select r.oid from pg_roles r where r.rolname = pgflow.caller_());
begin
  select f.* into flow from pgflow.flow f
  where f.workflow = workflow and case when version is null then f.is_current else f.version = version end;
  if not found then
    raise exception using errcode = 'PF001', message = format('there is no workflow %s in SQL%s',
      quote_nullable(workflow), coalesce(' with version ' || version, ''));
  elsif not pgflow.flow_allows_(workflow, 'see', caller) then
    raise exception using errcode = 'PF021', message = format('role %s may not see workflow %s',
      quote_ident(pg_get_userbyid(caller)), quote_literal(workflow)),
      hint = format('Its owner grants it: select pgflow.grant_workflow(%L, %L, ''see'')', workflow,
        pg_get_userbyid(caller));
  end if;
  return (
    with recursive hop as ( -- over nodes that only say where it goes on
      select n.pc as start, n.pc, n.next, n.op from pgflow.flow_node n where n.flow_id = flow.flow_id
      union
      select h.start, n.pc, n.next, n.op
      from hop h join pgflow.flow_node n on n.flow_id = flow.flow_id and n.pc = h.next
      where h.op in ('goto', 'set', 'leave', 'try')
    ), lands as (
      select h.start, h.pc from hop h where h.op not in ('goto', 'set', 'leave', 'try')
    ), edge as (
      select n.pc, n.op, l.pc as target, case when n.op in ('test', 'next') then '-->|yes|' else '-->' end as arrow, 1 as rank
      from pgflow.flow_node n join lands l on l.start = n.next
      where n.flow_id = flow.flow_id and n.op not in ('goto', 'set', 'leave', 'try', 'return', 'rethrow')
        and n.name !~ '^undo ' is not false
      union all
      select n.pc, n.op, l.pc, case n.op when 'lock' then '-->|in time: no|' else '-->|no|' end, 2
      from pgflow.flow_node n join lands l on l.start = n.alt
      where n.flow_id = flow.flow_id and n.op in ('test', 'next', 'lock')
      union all
      select n.pc, n.op, (n.opts->>'undo')::int, '-.->|undo|', 3
      from pgflow.flow_node n where n.flow_id = flow.flow_id and n.opts ? 'undo'
      union all
      select b.pc, 'try', h.pc, '-.->|on error|', 4
      from pgflow.flow_node n
      join lands b on b.start = n.next
      join lands h on h.start = n.alt
      where n.flow_id = flow.flow_id and n.op = 'try'
      union all
      select 0, 'start', l.pc, '-->', 1 from lands l where l.start = 1
      union all
      select 0, 'start', l.pc, '-.->|on error|', 4 from lands l where l.start = flow.handler
    ), reached as (
      select 0 as pc
      union
      select e.target from reached r join edge e on e.pc = r.pc
    )
    select concat_ws(e'\n', 'flowchart TD', format('  n0(["%s"])', replace(flow.signature, '"', '&quot;')),
      (select string_agg(format('  n%s%s', n.pc, pgflow.picture_of_(n)), e'\n' order by n.pc)
        from reached r join pgflow.flow_node n on n.flow_id = flow.flow_id and n.pc = r.pc),
      (select string_agg(format('  n%s %s n%s', e.pc, e.arrow, e.target), e'\n' order by e.pc, e.rank, e.target)
        from reached r join edge e on e.pc = r.pc))
  );
end
$$;
comment on function pgflow.draw_workflow(text, int)
  is 'A version of a workflow in SQL, the current one if none is named, as a picture in the language of Mermaid. PF001 '
     'if there is none, PF021 if you may not see it';
--! grant draw_workflow to pgflow_client, pgflow_operator, pgflow_auditor

create or replace function pgflow.check_workflow(workflow text, version int default null)
returns table (line int, sqlstate text, message text, hint text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  function regprocedure := (select to_regprocedure(w.function) from pgflow.workflows w
    where w.workflow = workflow and w.body is not null
      and case when version is null then w.is_current else w.version = version end);
  home name := (select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'plpgsql_check');
begin
  if function is null then
    raise exception using errcode = 'PF001',
      message = format('there is no workflow %s in SQL that you may see', quote_nullable(workflow)),
      hint = 'The view pgflow.workflows lists them.';
  elsif home is null then
    raise exception using errcode = 'PF006', message = 'the extension plpgsql_check is not installed in this database',
      hint = 'Install it, and create extension plpgsql_check.';
  end if;
  return query execute format('select c.lineno, c.sqlstate, c.message, c.hint from %I.plpgsql_check_function_tb($1, '
    'fatal_errors => false, other_warnings => false, performance_warnings => false, extra_warnings => false) c '
    'where c.level = ''error'' order by c.lineno', home) using function;
end
$$;
comment on function pgflow.check_workflow(text, int)
  is 'Errors that plpgsql_check finds in the steps of a workflow in SQL: unknown tables, columns and functions, and '
     'wrong types, each with its line; PF006 where that extension is not installed';
--! grant check_workflow to pgflow_client, pgflow_operator
