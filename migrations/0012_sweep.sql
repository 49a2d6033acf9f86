-- Workers free keys whose retention is over: those that have one are found without reading the others.

-- squawk-ignore require-concurrent-index-creation
create index run_key_retention_idx on pgflow.run_key (retention_seconds, chain_id) where retention_seconds is not null;
