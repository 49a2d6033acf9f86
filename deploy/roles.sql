-- Logins with the least that each process needs. Run it once, after the first `pgflow migrate`, as a role that may
-- create roles. Change the passwords. Workers and web also need rights on your own tables.
create role shop_web login password 'change-me';
grant pgflow_client, pgflow_declarer to shop_web;
create role shop_worker login password 'change-me';
grant pgflow_worker, pgflow_declarer to shop_worker;
create role shop_console login password 'change-me';
grant pgflow_operator, pgflow_speaker to shop_console;
create role shop_reader login password 'change-me';
grant pgflow_auditor to shop_reader;
