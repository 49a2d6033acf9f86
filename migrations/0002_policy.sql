-- The policy, as data: which effects need somebody's leave.

create table pgflow.policy (
  version int primary key,
  set_at timestamptz not null,
  set_by text not null check (char_length(set_by) <= 255),
  why text not null check (char_length(why) <= 4096)
);
comment on table pgflow.policy is 'Versions of the policy, insert only: the newest counts';

create table pgflow.policy_rule (
  version int not null references pgflow.policy,
  rule int not null,
  needs text not null check (needs in ('gate', 'nothing')),
  risk text check (risk in ('reversible', 'compensable', 'irreversible')),
  name text check (octet_length(name) between 1 and 255),
  amount text,
  above numeric check (above not in ('NaN', 'Infinity', '-Infinity')),
  predicate text,
  primary key (version, rule),
  check ((amount is null) = (above is null))
);
comment on table pgflow.policy_rule is 'Rules of a version of the policy: the first that fits an effect says what it needs';
