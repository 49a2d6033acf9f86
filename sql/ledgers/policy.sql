-- Policy: which effects need somebody's leave, as data. A version is never changed: a new one takes its place.

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
begin
  if jsonb_typeof(rules) is distinct from 'array' then
    raise exception using errcode = 'PF003', message = 'the rules of a policy must be an array of objects';
  end if;
  select k into unknown
  from jsonb_array_elements(rules) r cross join lateral jsonb_object_keys(case when jsonb_typeof(r) = 'object' then r
    else '{"": 0}' end) k
  where k not in ('needs', 'risk', 'name', 'amount', 'above', 'predicate') limit 1;
  if unknown is not null then
    raise exception using errcode = 'PF003',
      message = format('a rule of a policy has needs, risk, name, amount, above and predicate, not %s',
        quote_literal(unknown));
  end if;
  perform pg_advisory_xact_lock(hashtext('pgflow.policy'));
  select coalesce(max(version), 0) + 1 into next_version from pgflow.policy;
  insert into pgflow.policy (version, set_at, set_by, why)
  values (next_version, pgflow.now_(), left(coalesce(set_by, session_user), 255), left(why, 4096));
  insert into pgflow.policy_rule (version, rule, needs, risk, name, amount, above, predicate)
  select next_version, r.n, coalesce(r.rule->>'needs', 'gate'), r.rule->>'risk', r.rule->>'name',
    (r.rule->>'amount')::jsonpath::text,
    (r.rule->>'above')::numeric, (r.rule->>'predicate')::jsonpath::text
  from jsonb_array_elements(rules) with ordinality as r (rule, n);
  return next_version;
exception
  when check_violation or not_null_violation then
    raise exception using errcode = 'PF003', message = 'a rule of a policy cannot be: ' || sqlerrm;
  when syntax_error or invalid_text_representation or numeric_value_out_of_range then
    raise exception using errcode = 'PF003', message = 'a rule of a policy cannot be read: ' || sqlerrm;
end
$$;
comment on function pgflow.set_policy(jsonb, text, text)
  is 'Puts a new version of the policy in force; rules = [{needs: gate or nothing, risk, name, amount: jsonpath, '
     'above: number, predicate: jsonpath}, ...], the first that fits counts; answers its number';
--! grant set_policy to pgflow_operator

create or replace function pgflow.needs_(name text, risk text, request jsonb, out version int, out needs text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  rule record;
  seen jsonb := case when pgflow.is_envelope_(request) then coalesce(request->'shown', '{}') else request end;
begin
  select max(p.version) into version from pgflow.policy p;
  if version is null then
    return;
  end if;
  for rule in select * from pgflow.policy_rule r where r.version = version order by r.rule loop
    continue when rule.risk <> risk or rule.name <> name;
    -- What a rule cannot judge counts as fitting: one that errs, or that looks at what is encoded, must not let an
    -- effect through.
    begin
      continue when rule.above is not null and pgflow.is_judgeable_(request, rule.amount) and not exists (
        select from jsonb_path_query_tz(seen, rule.amount::jsonpath) a
        where case when a #>> '{}' ~ '^-?[0-9]{1,100}([.][0-9]{1,100})?$' then (a #>> '{}')::numeric > rule.above
          else true end
      );
      continue when rule.predicate is not null and pgflow.is_judgeable_(request, rule.predicate)
        and not coalesce(jsonb_path_match_tz(seen, rule.predicate::jsonpath), true);
    exception when data_exception or feature_not_supported then
      null;
    end;
    needs := rule.needs;
    return;
  end loop;
end
$$;
comment on function pgflow.needs_(text, text, jsonb)
  is 'Judgement of the policy in force on an effect: its version, and gate, nothing or null where no rule fits';

comment on column pgflow.policy.version is 'Its number; the greatest is in force';
comment on column pgflow.policy.set_at is 'Time at which it was put in force';
comment on column pgflow.policy.set_by is 'Name of whoever put it in force';
comment on column pgflow.policy.why is 'Reason for it';

comment on column pgflow.policy_rule.version is 'The version that it belongs to';
comment on column pgflow.policy_rule.rule is 'Its place: the first that fits counts';
comment on column pgflow.policy_rule.needs is 'gate = somebody''s leave, nothing = it may go ahead';
comment on column pgflow.policy_rule.risk is 'Fits effects of this risk; null = of any';
comment on column pgflow.policy_rule.name is 'Fits effects of this name; null = of any';
comment on column pgflow.policy_rule.amount
  is 'Path of an amount in the request; fits if it is above the limit, or no number';
comment on column pgflow.policy_rule.above is 'The limit of the amount';
comment on column pgflow.policy_rule.predicate
  is 'Fits requests of which this holds, or of which it cannot be said; null = any';
