-- Envelopes: values that the codec of an app has encoded (`App(codec=...)`). One is an object that names its key as
-- `$codec` and holds the value as `data`; where each is read says what is readable beside that. Nothing here can
-- decode one. What SQL compares are keyed hashes (`hash`), and the policy reads what an effect lets it read (`shown`).

create or replace function pgflow.is_envelope_(value jsonb)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_typeof(value) = 'object' and value ? '$codec' and value ? 'data'
$$;
comment on function pgflow.is_envelope_(jsonb) is 'True if a value was encoded by the codec of an app';

create or replace function pgflow.unwrapped_(body text)
returns text
language sql
immutable
-- Also of envelopes in texts within a value, whose quotes are escaped.
return case when position('$wrap' in body) = 0 then body else regexp_replace(body,
  e'(\\$wrap\\\\*": ?\\\\*")[A-Za-z0-9._-]{1,64}:[A-Za-z0-9+/=]{40,255}', '\1', 'g') end;
comment on function pgflow.unwrapped_(text)
  is 'Text of a value without the wraps in its envelopes (sql/ops/rewrap.sql): the same after a rotation of keys';

create or replace function pgflow.is_redacted_(body text)
returns boolean
language sql
immutable
-- Exactly what a redaction leaves (sql/ledgers/redact.sql): all else is a value like others.
return starts_with(body, '{"$codec":"","data":"","redacted":"') and substr(body, 36, 65) ~ '^[0-9a-f]{64}"$';
comment on function pgflow.is_redacted_(text) is 'True if a value''s text stands for one that was redacted';

create or replace function pgflow.as_compared_(value json)
returns jsonb
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case when pgflow.is_envelope_(value::jsonb) and value->>'hash' is not null
    then jsonb_build_object('$hash', value->>'hash') else value::jsonb end
$$;
comment on function pgflow.as_compared_(json)
  is 'Stand-in for a value where two are compared: of an encoded one its keyed hash, since it looks different each '
     'time';

create or replace function pgflow.is_judgeable_(request jsonb, path text)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  -- Of a path that begins anywhere but at a member of the root it cannot be known what it would look at.
  select path is null or not pgflow.is_envelope_(request) or path !~ e'\\$(?!\\.")' and not exists (
    select from regexp_matches(path, e'\\$\\."((?:[^"\\\\]|\\\\.)*)"', 'g') m
    where not coalesce(request->'shown', '{}') ? m[1]
  )
$$;
comment on function pgflow.is_judgeable_(jsonb, text)
  is 'True if a rule of the policy can see what its jsonpath looks at, of a request that may be encoded';
