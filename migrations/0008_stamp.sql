-- Workers say what schema their code is made for, so that a view can tell which of them an upgrade has left behind.

alter table pgflow.worker add column stamp text;
comment on column pgflow.worker.stamp is 'Comment of the schema that its code would install; null = a version that did not say so';
