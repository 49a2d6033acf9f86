-- Expressions of cron in SQL, for schedules that no Python worker is there to keep. `pgflow/_model/schedules.py` says what
-- they mean where clocks change, and a test holds the two equal. A day without a change of the clock is simple: each
-- time of its wall is one moment. Only on others is each time looked up.
--
-- Values of a field are numbers. Beside those, of the days of a month -1000 is the last and -1001 the last weekday; of the
-- days of a week 1000 + d is the last d of a month, and 100 * n + d the nth.

create or replace function pgflow.cron_value_(said text, field int)
returns int
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  value int := case field
    when 5 then array_position('{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}', said)
    when 6 then array_position('{SUN,MON,TUE,WED,THU,FRI,SAT}', said) - 1 end;
begin
  if value is null and said ~ '^[0-9]{1,4}$' then
    value := said::int;
  end if;
  if value is null or value < (array[0, 0, 0, 1, 1, 0])[field] or value > (array[59, 59, 23, 31, 12, 7])[field] then
    raise exception using errcode = 'PF003', message = format('%s is no %s of an expression of cron', quote_literal(said),
      (array['second', 'minute', 'hour', 'day of month', 'month', 'day of week'])[field]);
  end if;
  return value;
end
$$;
comment on function pgflow.cron_value_(text, int) is 'The number that a value of a field is; refuses (PF003) others';

create or replace function pgflow.cron_field_(said text, field int)
returns int[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  term text := split_part(said, '/', 1);
  step text := substr(said, length(term) + 2);
  found int[];
begin
  if said = '*' then
    return array(select generate_series((array[0, 0, 0, 1, 1, 0])[field], (array[59, 59, 23, 31, 12, 7])[field]));
  elsif said ~ ',' then
    return array(select distinct v from unnest(string_to_array(said, ',')) t
      cross join unnest(pgflow.cron_field_(t, field)) v order by v);
  elsif field = 6 and said ~ '^[0-9]+L$' then
    return array[1000 + pgflow.cron_value_(left(said, -1), 6)];
  elsif field = 6 and said ~ '^[^#/-]+#[1-5]$' then
    return array[100 * right(said, 1)::int + pgflow.cron_value_(left(said, -2), 6)];
  elsif said ~ '/' then
    found := pgflow.cron_field_(term, field);
    if step !~ '^[0-9]{1,4}$' or step::int = 0 then
      perform pgflow.cron_value_(said, field);
    elsif found in ('{-1000}', '{-1001}') then
      return found;
    elsif cardinality(found) = 1 then
      return array(select generate_series(found[1], (array[59, 59, 23, 31, 12, 7])[field], step::int));
    end if;
    return array(select v from unnest(found) with ordinality as e (v, n) where (n - 1) % step::int = 0 order by v);
  elsif said ~ '-' then
    found := array(select generate_series(pgflow.cron_value_(split_part(said, '-', 1), field),
      pgflow.cron_value_(substr(said, length(split_part(said, '-', 1)) + 2), field)));
    if found = '{}' then
      perform pgflow.cron_value_(said, field);
    end if;
    return found;
  elsif field = 4 and said in ('L', 'LW') then
    return array[case said when 'L' then -1000 else -1001 end];
  end if;
  return array[pgflow.cron_value_(said, field)];
end
$$;
comment on function pgflow.cron_field_(text, int) is 'The values that a field of an expression of cron has, in their order';

create or replace function pgflow.cron_moments_(wall timestamp, zone text, is_fixed boolean)
returns timestamptz[]
language plpgsql
stable strict
set search_path = pg_catalog, pg_temp
as $$
declare
  found timestamptz[];
begin
  loop
    -- By the offset of the day before, and by that of the day after.
    found := array(
      select distinct m.at from unnest(array['-1 day', '1 day']::interval[]) side
      cross join lateral (select (wall at time zone 'UTC') + side as t) d
      cross join lateral (select (wall at time zone 'UTC') - ((d.t at time zone zone) - (d.t at time zone 'UTC')) as at) m
      where m.at at time zone zone = wall order by m.at
    );
    if is_fixed and found <> '{}' then
      return found[1:1];
    end if;
    exit when not is_fixed or found <> '{}';
    wall := wall + interval '1 minute'; -- the clock has gone forward over it
  end loop;
  return found;
end
$$;
comment on function pgflow.cron_moments_(timestamp, text, boolean)
  is 'The moments at which a clock on the wall shows a time: none, one or two; of a fixed hour always one';

create or replace function pgflow.cron_has_day_(days int[], weekdays int[], is_both boolean, day date)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case when is_both then k.of_month and k.of_week else k.of_month or k.of_week end
  from (select extract(day from day)::int as n, extract(isodow from day)::int as dow,
    extract(day from (date_trunc('month', day::timestamp) + interval '1 month - 1 day'))::int as last) d
  cross join lateral (select d.n = any(days)
      or -1000 = any(days) and d.n = d.last
      or -1001 = any(days) and d.dow <= 5 and (d.n = d.last or d.dow = 5 and d.n + 2 >= d.last) as of_month,
    weekdays && array[d.dow, d.dow % 7, 100 * ((d.n + 6) / 7) + d.dow, 100 * ((d.n + 6) / 7) + d.dow % 7]
      or weekdays && array[1000 + d.dow, 1000 + d.dow % 7] and d.n + 7 > d.last as of_week) k
$$;
comment on function pgflow.cron_has_day_(int[], int[], boolean, date) is 'True if the days of an expression have this one';

create or replace function pgflow.cron_slots_(
  cron text, zone text, after timestamptz, most int, upto timestamptz default 'infinity'
)
returns timestamptz[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  said text := upper(btrim(cron));
  fields text[];
  is_fixed boolean;
  is_both boolean;
  seconds int[];
  minutes int[];
  hours int[];
  days int[];
  months int[];
  weekdays int[];
  day date := (after at time zone zone)::date;
  last_day date := day + 18263; -- fifty years
  shift interval;
  hour int;
  found timestamptz[] := '{}';
begin
  said := case said when '@HOURLY' then '0 * * * *' when '@DAILY' then '0 0 * * *' when '@MIDNIGHT' then '0 0 * * *'
    when '@WEEKLY' then '0 0 * * 0' when '@MONTHLY' then '0 0 1 * *' when '@YEARLY' then '0 0 1 1 *'
    when '@ANNUALLY' then '0 0 1 1 *' else said end;
  fields := regexp_split_to_array(said, '[[:space:]]+');
  if coalesce(cardinality(fields), 0) not in (5, 6) then
    raise exception using errcode = 'PF003', message = format('%s is not a cron expression', quote_nullable(cron)),
      hint = 'It has five fields (minute, hour, day of month, month, day of week), or six that begin with seconds.';
  end if;
  is_fixed := cardinality(fields) = 5 and fields[1] !~ '^[*]' and fields[2] !~ '^[*]';
  if cardinality(fields) = 5 then
    fields := array['0'] || fields;
  end if;
  is_both := fields[4] ~ '^[*]' or fields[6] ~ '^[*]';
  seconds := pgflow.cron_field_(fields[1], 1);
  minutes := pgflow.cron_field_(fields[2], 2);
  hours := pgflow.cron_field_(fields[3], 3);
  days := pgflow.cron_field_(fields[4], 4);
  months := pgflow.cron_field_(fields[5], 5);
  weekdays := pgflow.cron_field_(fields[6], 6);
  if is_both and (select min(d) from unnest(days) d)
    > (select max((array[31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])[m]) from unnest(months) m)
  then
    raise exception using errcode = 'PF003', message = format('the day and month of an expression of cron never come: %s',
      quote_literal(cron));
  end if;

  if after not between '0001-01-01Z' and '9999-01-01Z' then
    return found;
  end if;
  while day <= last_day and cardinality(found) < most and day - 1 <= (upto at time zone zone)::date loop
    if extract(month from day)::int <> all(months) then
      day := (date_trunc('month', day::timestamp) + interval '1 month')::date;
      continue;
    end if;
    if pgflow.cron_has_day_(days, weekdays, is_both, day) then
      -- What the clock shows is ahead of UTC by this, on the day before as on the day after.
      select min(o.shift) into shift
      from (select (t at time zone zone) - (t at time zone 'UTC') as shift
        from unnest(array[-1, 0, 1, 2]) n cross join lateral (select (day + n)::timestamp at time zone 'UTC' as t) x) o
      having count(distinct o.shift) = 1;
      if shift is null then
        found := found || array(
          select distinct m from unnest(hours) h cross join unnest(minutes) i cross join unnest(seconds) s
          cross join unnest(pgflow.cron_moments_(day + make_time(h, i, s), zone, is_fixed)) m
          where m > after and m <= upto order by m);
      else
        foreach hour in array hours loop
          continue when day + make_time(hour, 59, 59) < (after at time zone zone);
          exit when cardinality(found) >= most;
          found := found || array(
            select m.at from unnest(minutes) i cross join unnest(seconds) s
            cross join lateral (select ((day + make_time(hour, i, s)) at time zone 'UTC') - shift as at) m
            where m.at > after and m.at <= upto order by m.at);
        end loop;
      end if;
    end if;
    day := day + 1;
  end loop;
  return found[:most];
end
$$;
comment on function pgflow.cron_slots_(text, text, timestamptz, int, timestamptz)
  is 'The next times after one that an expression of cron names in a zone, so many at most';

create or replace function pgflow.next_time(cron text, zone text default 'UTC', after timestamptz default now())
returns timestamptz
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select (pgflow.cron_slots_(cron, pgflow.check_zone_(zone), after, 1))[1]
$$;
comment on function pgflow.next_time(text, text, timestamptz)
  is 'The next time after one that an expression of cron names in a time zone; null if there is none. Where clocks change '
     'it is that of schedules. PF003 if it is not an expression';
--! grant next_time to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.slots_(spec jsonb, after timestamptz, most int, upto timestamptz default 'infinity')
returns timestamptz[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  zone text := coalesce(spec->>'tz', 'UTC');
  every interval := (spec->>'every')::float8 * interval '1 second';
  raw timestamptz[];
  slot timestamptz;
  day date;
  iso text;
  is_at_end boolean;
  found timestamptz[] := '{}';
begin
  after := greatest(after, (spec->>'start_at')::timestamptz - interval '1 microsecond');
  upto := least(upto, (spec->>'end_at')::timestamptz);
  while cardinality(found) < most loop
    if every is null then
      raw := array(select distinct s from jsonb_array_elements_text(spec->'cron') c
        cross join unnest(pgflow.cron_slots_(c, zone, after, most, upto)) s order by s limit most);
    else
      raw := array(
        select b.at + n * every
        from (select timestamptz 'epoch' + make_interval(secs => coalesce((spec->>'offset')::float8, 0)) as zero) z
        cross join lateral (select z.zero + floor(extract(epoch from after - z.zero) / extract(epoch from every)) * every
          as at) b
        cross join generate_series(0, most) n
        where b.at + n * every > after and b.at + n * every <= upto order by n limit most);
    end if;
    is_at_end := cardinality(raw) < most;
    foreach slot in array raw loop
      day := (slot at time zone zone)::date;
      iso := to_char(day, 'YYYY-MM-DD'); -- whatever the style of the session
      if spec->'not_on' ? iso or spec ? 'only_on' and not spec->'only_on' ? iso then
        day := case when spec ? 'only_on' then (select min(d::date) from jsonb_array_elements_text(spec->'only_on') d
          where d::date > day) else day + 1 end;
        is_at_end := day is null;
        after := (pgflow.cron_moments_(day, zone, true))[1] - interval '1 microsecond';
        exit;
      end if;
      found := found || slot;
      after := slot;
    end loop;
    exit when is_at_end;
  end loop;
  return found[:most];
end
$$;
comment on function pgflow.slots_(jsonb, timestamptz, int, timestamptz)
  is 'The next slots of a schedule after a time, so many at most';

create or replace function pgflow.refills_(wanted jsonb)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  one jsonb;
  after timestamptz;
  t timestamptz;
  span interval;
  past timestamptz[];
  coming timestamptz[];
  answers jsonb := '[]';
begin
  for one in select e from jsonb_array_elements(wanted) e loop
    begin
      after := (one->>'after')::timestamptz;
      t := (one->>'now')::timestamptz;
      past := '{}';
      span := '1 hour';
      -- The newest thousand of the past, in a time that grows until it has them.
      while after < t loop
        past := pgflow.slots_(one->'spec', greatest(after, t - span), 100000, t);
        exit when t - span <= after or cardinality(past) >= 1000;
        span := span * 4;
      end loop;
      coming := pgflow.slots_(one->'spec', greatest(after, t), 16);
      answers := answers || jsonb_build_object('name', one->'name', 'version', one->'version', 'after', one->'after',
        'slots', to_jsonb(past[greatest(1, cardinality(past) - 999):] || coming), 'is_over', cardinality(coming) < 16);
    exception when others then
      answers := answers || jsonb_build_object('name', one->'name', 'version', one->'version', 'after', one->'after',
        'error', sqlerrm);
    end;
  end loop;
  return answers;
end
$$;
comment on function pgflow.refills_(jsonb)
  is 'The slots that keep_schedules asks for, as refill_schedules takes them; of each schedule, or what is wrong with it';

create or replace function pgflow.fire_schedules(worker_id int)
returns float8
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  kept record;
begin
  for looks in 1 .. 3 loop
    select k.* into kept from pgflow.keep_schedules(worker_id) k;
    exit when kept.refills::text = '[]';
    perform pgflow.refill_schedules(pgflow.refills_(kept.refills::jsonb));
  end loop;
  return kept.wait_seconds;
end
$$;
comment on function pgflow.fire_schedules(int)
  is 'Fires the schedules that are due, if this worker is the one to do it, with no need of Python; answers the seconds '
     'until the next look';
--! grant fire_schedules to pgflow_worker
