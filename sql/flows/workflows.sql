-- Workflows in SQL: made, looked at, dropped. A text is compiled to nodes and to one function, which belongs to whoever
-- makes the workflow, in the first schema of their search path, as `create function` would have it. It is SECURITY
-- DEFINER with the search path of that moment, temporary objects last, and may be executed by its owner and by the
-- owner of this schema, which drives, and for that may look into its schema. So a step has the rights of its definer,
-- whoever drives, and cannot leave them.
--
-- Rows here say which function a run's nodes call, so they must not be had by lying. What `record_flow` is given is
-- signed: the comment of the function, which only its owner can write, has the hash of it. A function has one name
-- here, since a text that merely finds it may hold more: other types, comments, a second statement. And a program is
-- what its text compiles to, since its nodes say which units a run writes. Who replaces or drops a workflow must have
-- the rights of its definer.
--
-- The same text, by the same definer, is the version that is there. Another text is the next one. A run keeps the one
-- that it began with.

create or replace function pgflow.record_flow(program jsonb, function text)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  made record;
  last pgflow.flow;
  id int;
  t timestamptz := pgflow.now_();
begin
  select p.proowner, p.prosecdef, obj_description(p.oid, 'pg_proc') as said,
    format('%I.%I(int, jsonb, jsonb)', n.nspname, p.proname) as name into made
  from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.oid = to_regprocedure(function);
  if made.name is distinct from function
    or made.said is distinct from 'Made by pgflow.create_workflow: '
      || encode(sha256(convert_to(jsonb_build_array(program, function)::text, 'UTF8')), 'hex')
    or not made.prosecdef
    or program - 'hash' is distinct from pgflow.compile_workflow(program->>'signature', program->>'body',
      array(select jsonb_array_elements_text(program->'schemas'))::name[])
  then
    raise exception using errcode = 'PF003', message = 'a workflow is made by pgflow.create_workflow';
  end if;
  select f.* into last from pgflow.flow f where f.workflow = program->>'workflow' order by f.version desc limit 1;
  if (pgflow.flow_owner_(program->>'workflow') is not null
      or exists (select from pgflow.flow_right r where r.workflow = program->>'workflow' and r.privilege = 'replace'))
    and not pgflow.flow_allows_(program->>'workflow', 'replace', made.proowner)
  then
    raise exception using errcode = 'PF006',
      message = format('workflow %s belongs to %s', quote_literal(program->>'workflow'),
        coalesce(pg_get_userbyid(pgflow.flow_owner_(program->>'workflow')), 'other roles')),
      hint = 'Only that role, a member of it, a superuser, or a role that was granted the right replaces it. '
        'Use another name.';
  end if;
  perform pgflow.refuse_coded_(program->>'workflow');
  update pgflow.flow f set is_current = false where f.workflow = program->>'workflow' and f.is_current;
  insert into pgflow.flow as f (workflow, version, created_at, handler, is_current, definer, function, hash, created_by,
    signature, body, parameters)
  values (program->>'workflow', coalesce(last.version, 0) + 1, t, (program->>'handler')::int, true, made.proowner,
    function,
    program->>'hash', session_user, program->>'signature', program->>'body', program->'parameters')
  returning f.flow_id into id;
  insert into pgflow.flow_node (flow_id, pc, next, alt, op, name, opts)
  select id, n.pc, (n.node->>'next')::int, (n.node->>'alt')::int, n.node->>'op', n.node->>'name',
    coalesce(n.node->'opts', '{}')
  from jsonb_array_elements(program->'nodes') with ordinality as n (node, pc);
  insert into pgflow.code as c (first_at, last_at, is_pinned, workflow, version, code_hash)
  values (t, t, false, program->>'workflow', 'sql', 'sql')
  on conflict (workflow, version, code_hash) do update set last_at = excluded.last_at;
  return coalesce(last.version, 0) + 1;
end
$$;
comment on function pgflow.record_flow(jsonb, text)
  is 'Notes a new version of a workflow in SQL: what create_workflow has signed as the owner of its function';
--! grant record_flow to pgflow_client, pgflow_operator

create or replace function pgflow.refuse_coded_(workflow text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  if exists (
    select from pgflow.code c join pgflow.worker_code h on h.code_id = c.code_id
    join pgflow.worker w on w.worker_id = h.worker_id
    where c.workflow = workflow and w.version <> 'sql'
  ) then
    raise exception using errcode = 'PF006',
      message = format('a worker has a workflow %s in Python', quote_literal(workflow)),
      hint = 'A name is of one workflow: use another one, or stop that worker.';
  end if;
end
$$;
comment on function pgflow.refuse_coded_(text)
  is 'Refuses (PF006) the name of a workflow that a living worker has as code';

create or replace function pgflow.lock_flow(workflow text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_xact_lock(pgflow.latch_('flow ' || workflow));
end
$$;
comment on function pgflow.lock_flow(text) is 'Has versions of a workflow be made one after another';
--! grant lock_flow to pgflow_client, pgflow_operator

create or replace function pgflow.create_workflow(
  signature text, body text, schemas name[] default current_schemas(false)
)
returns text
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set check_function_bodies = on
as $$
#variable_conflict use_variable
declare
  program jsonb;
  workflow text;
  hash text;
  known record;
  next int;
  function text;
  path text;
  problem text;
  head text;
  driver regrole := (select n.nspowner from pg_namespace n where n.nspname = 'pgflow');
begin
  schemas := array(select s from unnest(schemas) s where s !~ '^pg_temp');
  if schemas = '{}' then
    raise exception using errcode = 'PF003', message = 'no schema is there to create the function of the workflow in',
      hint = 'Set search_path to a schema in which you may create functions.';
  end if;
  program := pgflow.compile_workflow(signature, body, schemas);
  workflow := program->>'workflow';
  perform pgflow.lock_flow(workflow);
  hash := encode(sha256(convert_to(jsonb_build_array(signature, body, current_user, schemas)::text, 'UTF8')), 'hex');
  program := program || jsonb_build_object('hash', hash);
  select max(w.version) as version, max(w.hash) filter (where w.is_current) as hash,
    max(w.version) filter (where w.is_current) as current_version into known
  from pgflow.workflows w where w.workflow = workflow;
  if known.hash = hash then
    return format('%s is version %s already', workflow, known.current_version);
  end if;
  next := coalesce(known.version, 0) + 1;
  function := format('%I.%I(int, jsonb, jsonb)', schemas[1], workflow || '@' || next);
  path := (select string_agg(quote_ident(s), ', ') from unnest(schemas || name 'pg_temp') s);
  head := format('create function %I.%I(_node int, _in jsonb, run jsonb) returns jsonb language plpgsql '
    'security definer '
    'set standard_conforming_strings = on set extra_float_digits = 1 set search_path = %s', schemas[1],
    workflow || '@' || next, path);
  begin
    execute format('%s as %L', head, pgflow.flow_source(program));
  exception when insufficient_privilege then
    raise;
  when others then
    get stacked diagnostics problem = message_text;
    -- The server does not tell where: compiled one by one, the first node that fails is the one.
    for k in 0 .. jsonb_array_length(program->'nodes') loop
      begin
        execute format('%s as %L', head, pgflow.flow_source(program, k));
        raise no_data_found; -- so that it is gone again
      exception
        when no_data_found then
          null;
        when others then
          perform pgflow.refuse_flow(program, k, problem);
      end;
    end loop;
    perform pgflow.refuse_flow(program, 0, problem);
  end;
  execute format('revoke all on function %s from public', function);
  execute format('grant execute on function %s to %s', function, driver);
  if not has_schema_privilege(driver, schemas[1], 'USAGE') then
    begin
      execute format('grant usage on schema %I to %s', schemas[1], driver);
    exception when insufficient_privilege then
      null;
    end;
  end if;
  if not has_schema_privilege(driver, schemas[1], 'USAGE') then -- a grant without the right to it may only warn
    raise exception using errcode = 'PF003',
      message = format('the driver of workflows may not look into schema %I, in which this one would be', schemas[1]),
      hint = format('Let the owner of the schema run: grant usage on schema %I to %s', schemas[1], driver);
  end if;
  execute format('comment on function %s is %L', function, 'Made by pgflow.create_workflow: '
    || encode(sha256(convert_to(jsonb_build_array(program, function)::text, 'UTF8')), 'hex'));
  next := pgflow.record_flow(program, function);
  if exists (select from pg_extension e where e.extname = 'plpgsql_check') then
    -- What is not there yet may be made by then, perhaps by a step: so this does not refuse.
    for known in select c.line, c.message, c.hint from pgflow.check_workflow(workflow) c loop
      raise warning using message = format('line %s: %s', known.line, known.message), hint = coalesce(known.hint, '');
    end loop;
  end if;
  return format('%s is version %s', workflow, next);
end
$$;
comment on function pgflow.create_workflow(text, text, name[])
  is 'Makes a workflow of a text of plpgsql with labels, or its next version; says which version it is. PF003, '
     'with line '
     'and column, if the text is not sound; PF006 if the name is another''s. It needs the right to create functions in '
     'the first schema of search_path';
--! grant create_workflow to pgflow_client, pgflow_operator

create or replace function pgflow.refuse_flow(program jsonb, node int, problem text)
returns void
language plpgsql
immutable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  body text := program->>'body';
  -- A declaration belongs to no node.
  line int := coalesce(case when node > 0 then program->'nodes'->(node - 1)->>'line' end::int, 1);
  word text := substring(problem from '"(.*)"');
begin
  perform pgflow.flow_fail_(body, x.place, problem)
  from pgflow.flow_tokens_(body) t cross join unnest(t.tokens, t.places) as x (token, place)
  where substring(pgflow.flow_place_(body, x.place) from e'\\d+')::int >= line
  order by x.token = word desc, x.place limit 1;
  raise exception using errcode = 'PF003', message = format('line %s: %s', line, problem);
end
$$;
comment on function pgflow.refuse_flow(jsonb, int, text)
  is 'Refuses (PF003) a text that the server could not compile, with the place that its error is about';
--! grant refuse_flow to pgflow_client, pgflow_operator

drop view if exists pgflow.workflows;
create view pgflow.workflows as
select f.workflow, f.version, f.is_current and f.dropped_at is null as is_current,
  coalesce(r.n, 0) as open_runs,
  pg_get_userbyid(f.definer) as definer, f.signature, f.parameters,
  case when exists (select from pg_catalog.pg_roles r where r.oid = f.definer and pg_catalog.pg_has_role(r.oid, 'USAGE'))
    or exists (
      select from pgflow.flow_right v left join pg_catalog.pg_roles r on r.oid = v.role
      where v.workflow = f.workflow and v.privilege = 'see'
        and (v.role = 0 or r.oid is not null and pg_catalog.pg_has_role(r.oid, 'USAGE')))
    then f.body end as body,
  f.function, f.hash, f.created_at, f.created_by, f.dropped_at,
  (
    select jsonb_object_agg(g.privilege, g.roles) from (
      select v.privilege, jsonb_agg(case v.role when 0 then 'public' else pg_get_userbyid(v.role) end order by v.role)
        as roles
      from pgflow.flow_right v where v.workflow = f.workflow group by v.privilege
    ) g
  ) as rights
from pgflow.flow f
left join (select flow_id, count(*) as n from pgflow.flow_frame group by flow_id) r on r.flow_id = f.flow_id;
comment on view pgflow.workflows is 'Workflows in SQL: each version, and how many open runs have begun with it';
--! grant workflows to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.workflows.workflow is 'Name of the workflow';
comment on column pgflow.workflows.version is 'Number of the version, from 1';
comment on column pgflow.workflows.is_current is 'True if runs begin with this version';
comment on column pgflow.workflows.open_runs is 'Open runs that have begun with it';
comment on column pgflow.workflows.definer is 'Role with whose rights its steps run';
comment on column pgflow.workflows.signature is 'Name and parameters, as they were written';
comment on column pgflow.workflows.parameters is 'The parameters: [{name, type, value if it has a default}, ...]';
comment on column pgflow.workflows.body is 'The text; null if you have neither the rights of its definer nor the right to see it';
comment on column pgflow.workflows.rights is 'Roles by the right that they were granted; null = the default, which is all may start it';
comment on column pgflow.workflows.function is 'The function that has the SQL of its steps';
comment on column pgflow.workflows.hash is 'Hash of text, definer and search path: the same again is the same version';
comment on column pgflow.workflows.created_at is 'Time at which it was made';
comment on column pgflow.workflows.created_by is 'Name of the session that made it';
comment on column pgflow.workflows.dropped_at is 'Time at which the workflow was dropped; null = it was not';

create or replace function pgflow.require_flow_(workflow text)
returns pgflow.flow
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  flow pgflow.flow;
begin
  select f.* into flow from pgflow.flow f where f.workflow = workflow and f.is_current and f.dropped_at is null;
  if not found then
    raise exception using errcode = 'PF001', message = format('there is no workflow %s in SQL',
      quote_nullable(workflow)),
      hint = 'The view pgflow.workflows lists them.';
  end if;
  return flow;
end
$$;
comment on function pgflow.require_flow_(text)
  is 'The current version of a workflow in SQL; refuses (PF001) others';

create or replace function pgflow.forget_flow(workflow text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  open_runs bigint;
begin
  perform pgflow.require_flow_(workflow);
  if exists (select from pgflow.flow f where f.workflow = workflow and to_regprocedure(f.function) is not null) then
    raise exception using errcode = 'PF006', message = 'a workflow is dropped by pgflow.drop_workflow';
  end if;
  select count(*) into open_runs
  from pgflow.places_() p join pgflow.lane l on l.lane_id = p.lane_id where l.workflow = workflow;
  if open_runs > 0 then
    raise exception using errcode = 'PF006',
      message = format('workflow %s has %s open runs', quote_literal(workflow), open_runs),
      hint = 'Let them end, or cancel them, and drop it then.';
  end if;
  update pgflow.flow f set dropped_at = pgflow.now_(), is_current = false
  where f.workflow = workflow and f.dropped_at is null;
  delete from pgflow.code c where c.workflow = workflow and c.code_hash = 'sql';
  delete from pgflow.flow_right r where r.workflow = workflow;
end
$$;
comment on function pgflow.forget_flow(text)
  is 'Notes that a workflow was dropped: that its functions are gone shows the right to; PF006 while runs are open';
--! grant forget_flow to pgflow_client, pgflow_operator

create or replace function pgflow.drop_workflow(workflow text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  function text;
begin
  perform pgflow.lock_flow(workflow);
  for function in select w.function from pgflow.workflows w where w.workflow = workflow and w.dropped_at is null loop
    execute format('drop function if exists %s', function);
  end loop;
  perform pgflow.forget_flow(workflow);
end
$$;
comment on function pgflow.drop_workflow(text)
  is 'Drops a workflow in SQL and its functions; its texts stay in pgflow.workflows. PF001 if there is none, '
     'PF006 while '
     'runs of it are open';
--! grant drop_workflow to pgflow_client, pgflow_operator

create or replace function pgflow.alter_workflow(workflow text, version int)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  flow pgflow.flow := pgflow.require_flow_(workflow);
begin
  perform pgflow.lock_flow(workflow);
  if not exists (select from pgflow.flow f where f.workflow = workflow and f.version = version
    and f.dropped_at is null) then
    raise exception using errcode = 'PF001', message = format('workflow %s has no version %s',
      quote_literal(workflow), version);
  elsif to_regprocedure(flow.function) is null then
    raise exception using errcode = 'PF006', message = format('the function of version %s is gone', version);
  end if;
  update pgflow.flow f set is_current = f.version = alter_workflow.version where f.workflow = workflow;
end
$$;
comment on function pgflow.alter_workflow(text, int)
  is 'Has new runs of a workflow in SQL begin with another of its versions, such as the one before; runs that '
     'have begun '
     'keep theirs. PF001 if there is none';
--! grant alter_workflow to pgflow_operator

create or replace function pgflow.check_flows_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'a frame is of an open run', format('run %s', f.run_id)
  from pgflow.flow_frame f
  where not exists (select from pgflow.run r where r.run_id = f.run_id)
    or exists (select from pgflow.outcome o where o.run_id = f.run_id)
  union all
  select 'rows of a loop are of a frame', format('run %s', i.run_id)
  from (select distinct n.run_id from pgflow.flow_item n) i
  where not exists (select from pgflow.flow_frame f where f.run_id = i.run_id)
  union all
  select 'a compensation has the variables of its step', format('run %s: the %s. of them', f.run_id, u.n)
  from pgflow.flow_frame f cross join unnest(f.undo) with ordinality as u (pc, n)
  where not exists (select from pgflow.flow_item i where i.run_id = f.run_id and i.pc = u.pc and i.n = u.n)
  union all
  select 'a frame is no further than its journal', format('run %s: unit %s', f.run_id, f.seq)
  from pgflow.flow_frame f
  where f.seq > (select coalesce(max(u.seq), 0) from pgflow.unit u where u.run_id = f.run_id)
  union all
  select 'a workflow in SQL has one current version', format('%s has %s', f.workflow,
    count(*) filter (where f.is_current))
  from pgflow.flow f where f.dropped_at is null group by f.workflow having count(*) filter (where f.is_current) <> 1
  union all
  -- The frame is a fold of the journal: made anew, it is the same.
  select 'a frame is the fold of its journal', format('run %s: %s, folded anew %s', f.run_id, f.said, f.folded)
  from (
    select k.run_id, pgflow.flow_said_(k) as said, pgflow.flow_said_(pgflow.fold_journal_(k.run_id)) as folded
    from pgflow.flow_frame k where k.is_marked and k.seq > 0
  ) f where f.said <> f.folded;
end
$$;
comment on function pgflow.check_flows_() is 'Frames of runs in SQL agree with their journals';

comment on column pgflow.flow.flow_id is 'Number of the version, among all workflows';
comment on column pgflow.flow.workflow is 'Name of the workflow';
comment on column pgflow.flow.version is 'Number of the version, from 1';
comment on column pgflow.flow.created_at is 'Time at which it was made';
comment on column pgflow.flow.dropped_at is 'Time at which the workflow was dropped';
comment on column pgflow.flow.handler is 'Node at which the handler of an exception begins; null = it has none';
comment on column pgflow.flow.is_current is 'True if runs begin with it';
comment on column pgflow.flow.definer is 'Role that owns the function; steps run with its rights';
comment on column pgflow.flow.function is 'The function that has the SQL of all nodes';
comment on column pgflow.flow.hash is 'Hash of text, definer and search path';
comment on column pgflow.flow.created_by is 'Name of the session that made it';
comment on column pgflow.flow.signature is 'Name and parameters, as they were written';
comment on column pgflow.flow.body is 'The text';
comment on column pgflow.flow.parameters is 'The parameters: [{name, type, value if it has a default}, ...]';

comment on column pgflow.flow_node.flow_id is 'The version that it is of';
comment on column pgflow.flow_node.pc is 'Number of the node';
comment on column pgflow.flow_node.next is 'The node after it';
comment on column pgflow.flow_node.alt is 'The node after it where a condition does not hold, or no row is left';
comment on column pgflow.flow_node.op is 'Kind of node';
comment on column pgflow.flow_node.name is 'Name of the step, signal or workflow';
comment on column pgflow.flow_node.opts
  is 'retry, every and undo of a step; leads = a wait or the end is next; void = the result is null; into, most and '
     'go_on of a wait or child; var and rows of a loop';
