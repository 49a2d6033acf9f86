-- Policy: the effects that need approval, as data. A version never changes; a new one replaces it.

create or replace function pgflow.set_policy(rules jsonb, why text, set_by text default null)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  next_version int;
  unknown text;
  said record;
begin
  if jsonb_typeof(rules) is distinct from 'array' then
    raise exception using errcode = 'PF003', message = 'the rules of a policy must be an array of objects';
  end if;
  select k into unknown
  from jsonb_array_elements(rules) r cross join lateral jsonb_object_keys(case when jsonb_typeof(r) = 'object' then r
    else '{"": 0}' end) k
  where k not in ('needs', 'risk', 'name', 'amount', 'above', 'predicate', 'author', 'role', 'approvers', 'quorum',
    'timeout', 'on_timeout', 'escalate') limit 1;
  if unknown is not null then
    raise exception using errcode = 'PF003',
      message = format('a rule of a policy has needs, risk, name, amount, above, predicate, author, role, approvers, '
        'quorum, timeout, on_timeout and escalate, not %s', quote_literal(unknown));
  end if;
  for said in
    select r.n, r.rule, m.name, r.rule->m.name as names
    from jsonb_array_elements(rules) with ordinality as r (rule, n)
    cross join (values ('approvers'), ('escalate')) m (name) where r.rule->m.name <> 'null'
  loop
    if jsonb_typeof(said.names) <> 'array' or said.names = '[]' or said.names @? '$[*] ? (@.type() != "string")'
      or exists (select from jsonb_array_elements_text(said.names) a where octet_length(a) not between 1 and 255)
      or octet_length(said.names::text) > 8192
    then
      raise exception using errcode = 'PF003', message = format('rule %s of a policy: %s must be an array of names of '
        '1 to 255 bytes, of 8 KiB in all, not %s', said.n, said.name, left(said.names::text, 200));
    end if;
  end loop;
  select r.n, r.rule into said from jsonb_array_elements(rules) with ordinality as r (rule, n)
  where r.rule->>'timeout' is null and (r.rule->>'on_timeout' is not null or r.rule->>'escalate' is not null) limit 1;
  if found then
    raise exception using errcode = 'PF003',
      message = format('rule %s of a policy says what becomes of its gate in time, and no timeout', said.n);
  end if;
  select r.n, r.rule->>'role' as role into said from jsonb_array_elements(rules) with ordinality as r (rule, n)
  where r.rule->>'role' is not null and not exists (select from pg_roles a where a.rolname = r.rule->>'role') limit 1;
  if found then
    raise exception using errcode = 'PF003',
      message = format('rule %s of a policy looks for a role that there is not: %s', said.n, quote_literal(said.role)),
      hint = 'role is the database role as which a worker acts, or one that this role is a member of.';
  end if;
  perform pg_advisory_xact_lock(pgflow.latch_('policy'));
  select coalesce(max(version), 0) + 1 into next_version from pgflow.policy;
  insert into pgflow.policy (version, set_at, set_by, why)
  values (next_version, pgflow.now_(), pgflow.sender_(set_by), pgflow.told_(why, 4096));
  insert into pgflow.policy_rule (version, rule, needs, risk, name, amount, above, predicate, author, role, approvers,
    quorum, timeout_seconds, on_timeout, escalate)
  select next_version, r.n, coalesce(r.rule->>'needs', 'gate'), r.rule->>'risk', r.rule->>'name',
    (r.rule->>'amount')::jsonpath::text,
    (r.rule->>'above')::numeric, (r.rule->>'predicate')::jsonpath::text, r.rule->>'author',
    r.rule->>'role',
    array(select jsonb_array_elements_text(nullif(r.rule->'approvers', 'null'))),
    coalesce((r.rule->>'quorum')::int, 1), extract(epoch from (r.rule->>'timeout')::interval),
    coalesce(r.rule->>'on_timeout', 'expire'),
    array(select jsonb_array_elements_text(nullif(r.rule->'escalate', 'null')))
  from jsonb_array_elements(rules) with ordinality as r (rule, n);
  perform pgflow.note_evidence_('policy', json_build_array(next_version));
  perform pgflow.note_evidence_('policy_rule', json_build_array(next_version, r.rule))
  from pgflow.policy_rule r where r.version = next_version order by r.rule;
  return next_version;
exception
  when check_violation or not_null_violation then
    raise exception using errcode = 'PF003', message = 'a rule of a policy cannot be: ' || sqlerrm;
  when syntax_error or data_exception then
    raise exception using errcode = 'PF003', message = 'a rule of a policy cannot be read: ' || sqlerrm;
end
$$;
comment on function pgflow.set_policy(jsonb, text, text)
  is 'Puts a new version of the policy in force; rules = [{needs: gate or nothing, risk, name, amount: jsonpath, '
     'above: number, predicate: jsonpath, author: model, role: of the database, and of its gate approvers: '
     '[name or role, ...], quorum, timeout: seconds or interval, on_timeout, escalate: [name, ...]}, ...], the first '
     'that fits counts; answers its number. PF003 names what a rule cannot say';
--! grant set_policy to pgflow_operator

create or replace function pgflow.acts_as_(role text, actor text default null)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  -- Not pg_has_role: a superuser would have every role.
  with recursive line as (
    select r.oid, r.rolname from pg_roles r
    where r.rolname = coalesce(acts_as_.actor, pgflow.caller_())
    union
    select r.oid, r.rolname from line l join pg_auth_members m on m.member = l.oid join pg_roles r on r.oid = m.roleid
  )
  select exists (select from line l where l.rolname = acts_as_.role)
$$;
comment on function pgflow.acts_as_(text, text)
  is 'True if a role, or the caller, is a database role or a member of it';

create or replace function pgflow.fits_(
  rule pgflow.policy_rule, name text, risk text, request jsonb, me bigint, decision text, is_by_model boolean,
  actor text default null
)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  seen jsonb := case when pgflow.is_envelope_(request) then coalesce(request->'shown', '{}') else request end;
begin
  if rule.risk <> risk or rule.name <> name then
    return false;
  end if;
  if rule.role is not null and not pgflow.acts_as_(rule.role, actor) then
    return false;
  end if;
  if rule.author = 'model' and not is_by_model and (me is null or not pgflow.is_by_model_(me, decision)) then
    return false;
  end if;
  -- What a rule cannot judge counts as fitting: one that errs, or that looks at what is encoded, must not let an
  -- effect through.
  if rule.above is not null and pgflow.is_judgeable_(request, rule.amount) and not exists (
    select from jsonb_path_query_tz(seen, rule.amount::jsonpath) a
    where case when a #>> '{}' ~ '^-?[0-9]{1,100}([.][0-9]{1,100})?$' then (a #>> '{}')::numeric > rule.above
      else true end
  ) then
    return false;
  end if;
  return not (rule.predicate is not null and pgflow.is_judgeable_(request, rule.predicate)
    and not coalesce(jsonb_path_match_tz(seen, rule.predicate::jsonpath), true));
exception when data_exception or feature_not_supported then
  return true;
end
$$;
comment on function pgflow.fits_(pgflow.policy_rule, text, text, jsonb, bigint, text, boolean, text)
  is 'True if a rule of the policy fits an effect of a run, with its inputs, or an effect that has no run yet';

create or replace function pgflow.terms_(rule pgflow.policy_rule)
returns jsonb
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case when rule.needs = 'gate'
    and (rule.approvers <> '{}' or rule.quorum > 1 or rule.timeout_seconds is not null)
  then
    jsonb_build_object('approvers', rule.approvers, 'quorum', rule.quorum, 'timeout', rule.timeout_seconds,
      'on_timeout', rule.on_timeout, 'escalate', rule.escalate)
  end
$$;
comment on function pgflow.terms_(pgflow.policy_rule)
  is 'Terms of the gate that a rule asks; null = anybody may answer, and it waits for good';

create or replace function pgflow.needs_(
  name text, risk text, request jsonb, me bigint default null, decision text default null,
  is_planned boolean default false, out version int, out needs text, out terms jsonb
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  rule pgflow.policy_rule;
begin
  select max(p.version) into version from pgflow.policy p;
  if version is null then
    return;
  end if;
  for rule in select * from pgflow.policy_rule r where r.version = version order by r.rule loop
    continue when not pgflow.fits_(rule, name, risk, request, me, decision, is_planned);
    needs := rule.needs;
    terms := pgflow.terms_(rule);
    return;
  end loop;
end
$$;
comment on function pgflow.needs_(text, text, jsonb, bigint, text, boolean)
  is 'Judgement of the policy in force on an effect of a run: its version, gate, nothing or null where no rule fits, '
     'and the terms of the gate where the rule says any';

create or replace function pgflow.judge_plan(acts jsonb)
returns jsonb
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(jsonb_agg(case when n.needs = 'gate' then jsonb_build_object('version', n.version, 'terms', n.terms)
    end order by a.n), '[]')
  from pgflow.act_rows_(acts) a cross join lateral pgflow.needs_(a.name, a.risk, a.request, is_planned => true) n
$$;
comment on function pgflow.judge_plan(jsonb)
  is 'Judgement of the policy in force on acts [[name, risk, request], ...] that a model has planned: for each the '
     'version that wants a gate, with its terms, or null';
--! grant judge_plan to pgflow_worker

create or replace function pgflow.try_policy(
  name text, risk text, request jsonb default '{}', by_model boolean default false, role text default null
)
returns table (version int, rule int, needs text, fits boolean, counts boolean, terms jsonb, says jsonb)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  r pgflow.policy_rule;
  is_settled boolean := false;
begin
  perform pgflow.check_name_(name, 'the name of an effect');
  if risk is null or risk not in ('reversible', 'compensable', 'irreversible') then
    raise exception using errcode = 'PF003',
      message = format('the risk of an effect is reversible, compensable or irreversible, not %s',
        quote_nullable(risk));
  end if;
  if jsonb_typeof(request) is distinct from 'object' then
    raise exception using errcode = 'PF003',
      message = 'the request of an effect is an object of its arguments by name';
  end if;
  if role is not null and not exists (select from pg_roles a where a.rolname = role) then
    raise exception using errcode = 'PF003', message = format('role %s does not exist', quote_literal(role));
  end if;
  for r in
    select p.* from pgflow.policy_rule p where p.version = (select max(v.version) from pgflow.policy v) order by p.rule
  loop
    fits := pgflow.fits_(r, name, risk, request, null, null, coalesce(by_model, false), role);
    version := r.version;
    rule := r.rule;
    needs := r.needs;
    terms := pgflow.terms_(r);
    says := jsonb_strip_nulls(jsonb_build_object('name', r.name, 'risk', r.risk, 'amount', r.amount, 'above', r.above,
      'predicate', r.predicate, 'author', r.author, 'role', r.role));
    counts := fits and not is_settled;
    is_settled := is_settled or fits;
    return next;
  end loop;
end
$$;
comment on function pgflow.try_policy(text, text, jsonb, boolean, text)
  is 'Says of each rule of the policy in force whether it would fit an effect with these arguments, and which one '
     'would count: the first. Of what a model has chosen, and of another role than yours, if you say so. Nothing is '
     'done';
--! grant try_policy to pgflow_worker, pgflow_operator, pgflow_auditor

create or replace function pgflow.is_by_model_(me bigint, decision text)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  -- One of another generation is not in this journal: it cannot be judged, and so counts as a model's.
  select decision is not null and coalesce((
    select bool_or(u.payload->>'model' is not null) from pgflow.unit u
    where u.run_id = me and u.kind = 'd' and u.key = is_by_model_.decision
  ), true)
$$;
comment on function pgflow.is_by_model_(bigint, text)
  is 'True if an effect of a run rests on a decision that names a model, or on one that cannot be looked at';

comment on column pgflow.policy.version is 'Its number; the greatest is in force';
comment on column pgflow.policy.set_at is 'Time at which it was put in force';
comment on column pgflow.policy.set_by is 'Author of the version, with the role of the session in brackets';
comment on column pgflow.policy.why is 'Reason for it';

comment on column pgflow.policy_rule.version is 'The version that it belongs to';
comment on column pgflow.policy_rule.rule is 'Its place: the first that fits counts';
comment on column pgflow.policy_rule.needs is 'gate = approval, nothing = it may go ahead';
comment on column pgflow.policy_rule.risk is 'Fits effects of this risk; null = of any';
comment on column pgflow.policy_rule.name is 'Fits effects of this name; null = of any';
comment on column pgflow.policy_rule.amount
  is 'Path of an amount in the request; fits if it is above the limit, or no number';
comment on column pgflow.policy_rule.above is 'The limit of the amount';
comment on column pgflow.policy_rule.predicate
  is 'Condition on the request; a request that it cannot judge fits; null = any request';
comment on column pgflow.policy_rule.author
  is 'model = fits what a model has chosen: effects that rest on a decision that names one, and '
     'steps of plans; null = any';
comment on column pgflow.policy_rule.role
  is 'Fits what this database role does, or one that is a member of it: the role of the worker; null = any';
comment on column pgflow.policy_rule.approvers is 'Names or roles that may answer the gate; empty = anybody';
comment on column pgflow.policy_rule.quorum is 'Number of people who must approve';
comment on column pgflow.policy_rule.timeout_seconds
  is 'Seconds that each of those have who are asked one after the other; null = no limit';
comment on column pgflow.policy_rule.on_timeout
  is 'Verdict once the time is over: expire, reject, escalate or approve';
comment on column pgflow.policy_rule.escalate is 'Names of those who are asked next, one after the other';
