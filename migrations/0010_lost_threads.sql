-- Bodies of steps that go on in a thread after their time-out cost their worker that thread: workers say how many.

alter table pgflow.worker add column lost_threads int not null default 0;
comment on column pgflow.worker.lost_threads is 'Threads at bodies that nobody waits for any more';
