-- Comments on columns, where the migration that made them has none. Comments are no
-- part of a table's shape, so they can be bettered here without a migration.

comment on column pgflow.migration.number is 'The four digits that the name of the file starts with';
comment on column pgflow.migration.name is 'Name of the file below migrations/, without its suffix';
comment on column pgflow.migration.sha256 is 'Hash of the text that was applied; another text under this name is refused';
comment on column pgflow.migration.applied_at is 'Time at which it was applied';

comment on column pgflow.source.name is 'Name of the file below sql/, without its suffix';
comment on column pgflow.source.sha256 is 'Hash of the text that was applied last; another text is applied again';
comment on column pgflow.source.applied_at is 'Time at which it was last applied';

comment on column pgflow.queue.queue is 'Name of the queue';
comment on column pgflow.queue.paused_at is 'Time since which nothing is claimed from it; null = not paused';

comment on column pgflow.lane.lane_id is 'The number of the lane';
comment on column pgflow.lane.queue is 'Queue that runs of this lane stand in';
comment on column pgflow.lane.workflow is 'Workflow that they run';
comment on column pgflow.lane.version is 'Version of the code that they need; empty = any';
comment on column pgflow.lane.paused_at is 'Time since which nothing is claimed from this lane; null = not paused';

comment on column pgflow.run_key.chain_id is 'The chain that the key names';
comment on column pgflow.run_key.tenant is 'Tenant of the key; empty where there is only one';
comment on column pgflow.run_key.key is 'The key, unique for each tenant';

comment on column pgflow.run.run_id is 'The number of the run';
comment on column pgflow.run.chain_id is 'Number of the first run of the chain: the same for all generations';
comment on column pgflow.run.parent_run_id is 'The run that started this one as its child; null = none';
comment on column pgflow.run.created_at is 'Time of the start';
comment on column pgflow.run.run_at is 'Time at which it may begin, if that is later than its start';
comment on column pgflow.run.deadline_at is 'Time at which it is cancelled if it has not ended; null = never';
comment on column pgflow.run.root is 'UUIDv7 of the chain: the stem of its idempotency keys';
comment on column pgflow.run.generation is '1, and one more each time the run continues as new, is rewound or restarted';
comment on column pgflow.run.lane_id is 'Its queue, workflow and version';
comment on column pgflow.run.parent_call is 'Number of the parent''s call that started it; null = no parent';
comment on column pgflow.run.priority is 'Lower numbers are claimed first, within their lane';
comment on column pgflow.run.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.run.key is 'The key it was started with, or one made up for it';
comment on column pgflow.run.input is 'Arguments of the workflow, an object of parameter names';
comment on column pgflow.run.labels is 'Strings by name, to find runs by; null = none';
comment on column pgflow.run.metadata is 'Data that the run carries along and hands on to its children; null = none';

comment on column pgflow.outcome.run_id is 'The run that ended';
comment on column pgflow.outcome.finished_at is 'Time of the end';
comment on column pgflow.outcome.status is 'completed, failed, cancelled, or continued as the next generation';
comment on column pgflow.outcome.reason is 'Reason of a cancel, in the words of whoever asked for it';
comment on column pgflow.outcome.output is 'Value that the workflow returned';
comment on column pgflow.outcome.error is 'The exception that it raised: type, message, traceback';

comment on column pgflow.deadline.run_id is 'The open run';
comment on column pgflow.deadline.due_at is 'Time at which it is cancelled if it has not ended';

comment on column pgflow.ready.run_id is 'The run that may be claimed';
comment on column pgflow.ready.ready_at is 'Time since which it is ready';
comment on column pgflow.ready.lane_id is 'Its queue, workflow and version';
comment on column pgflow.ready.priority is 'Lower numbers are claimed first, within their lane';

comment on column pgflow.lease.run_id is 'The run that is held';
comment on column pgflow.lease.token is 'Random number of this lease, compared for equality only';
comment on column pgflow.lease.claimed_at is 'Time of the claim';
comment on column pgflow.lease.worker_id is 'The worker that holds it';
comment on column pgflow.lease.lane_id is 'Its queue, workflow and version';
comment on column pgflow.lease.attempt is 'Claims since the run last made progress, this one included';
comment on column pgflow.lease.priority is 'Lower numbers are claimed first, within their lane';
comment on column pgflow.lease.suspect is 'Workers that died holding this run without a new unit';

comment on column pgflow.parked.run_id is 'The run that waits';
comment on column pgflow.parked.chain_id is 'Its chain, under which its mail comes';
comment on column pgflow.parked.parked_at is 'Time since which it waits';
comment on column pgflow.parked.lane_id is 'Its queue, workflow and version';
comment on column pgflow.parked.last_seq is 'Last unit of the run; 0 = it has not begun';
comment on column pgflow.parked.priority is 'Lower numbers are claimed first, within their lane';

comment on column pgflow.wait.run_id is 'The parked run';
comment on column pgflow.wait.call is 'Number of the call that waits; of children, the first of those calls';
comment on column pgflow.wait.kind is 's = for a signal, c = for the result of a child, e = for word of an effect';
comment on column pgflow.wait.name is 'Name of the signal, or child';
comment on column pgflow.wait.calls is 'Numbers of the calls that wait for a child; null where it is for a signal';

comment on column pgflow.timer.due_at is 'Time at which the run must go on';
comment on column pgflow.timer.run_id is 'The parked run';
comment on column pgflow.timer.call is 'Number of the call whose sleep, time-out or retry it is; 0 = the start';

comment on column pgflow.held.run_id is 'The run that is held';
comment on column pgflow.held.token is 'Token of the lease that held it; null where no worker did';
comment on column pgflow.held.held_at is 'Time since which it is held';
comment on column pgflow.held.lane_id is 'Its queue, workflow and version';
comment on column pgflow.held.last_seq is 'Last unit of the run; 0 = nothing is recorded';
comment on column pgflow.held.attempt is 'Claims since the run last made progress';
comment on column pgflow.held.priority is 'Lower numbers are claimed first, within their lane';
comment on column pgflow.held.state is 'paused = somebody asked for it, stuck = somebody must help';
comment on column pgflow.held.reason is 'Reason in short: the words of whoever paused it, or the kind of trouble';
comment on column pgflow.held.held_by is 'Name of whoever paused it; pgflow where the engine did';
comment on column pgflow.held.detail is 'Details of the trouble, such as both sides of a divergence';

comment on column pgflow.signal.signal_id is 'The number of the message: messages are taken in this order';
comment on column pgflow.signal.chain_id is 'The chain that it is for';
comment on column pgflow.signal.sent_at is 'Time of sending';
comment on column pgflow.signal.call is 'Result of a child: number of the parent''s call that started it; word of an effect: its call';
comment on column pgflow.signal.name is 'Name of the signal, or of what is asked';
comment on column pgflow.signal.sent_by is 'Sender: a role, or the name that the caller gave';
comment on column pgflow.signal.payload is 'Content of the message';

comment on column pgflow.undelivered.signal_id is 'The number that the message had in the mailbox';
comment on column pgflow.undelivered.chain_id is 'The chain that it was for';
comment on column pgflow.undelivered.run_id is 'Result of a child: the generation of the parent that started it';
comment on column pgflow.undelivered.sent_at is 'Time of sending';
comment on column pgflow.undelivered.moved_at is 'Time at which it was put aside';
comment on column pgflow.undelivered.call is 'Result of a child: number of the parent''s call that started it';
comment on column pgflow.undelivered.kind is 'As in the mailbox: s = signal, c = result of a child, x = cancel, p = pause, r = resume, t = retry, e = what became of an effect';
comment on column pgflow.undelivered.name is 'Name of the signal, or of what was asked';
comment on column pgflow.undelivered.sent_by is 'Sender';
comment on column pgflow.undelivered.payload is 'Content of the message';
comment on column pgflow.dropped_history.dropped_at is 'Time of removal';
comment on column pgflow.dropped_history.ended_before is 'The runs had ended before this time';
comment on column pgflow.dropped_history.runs is 'Number of runs removed';
comment on column pgflow.dropped_history.dropped_by is 'Name of the session that removed them';

comment on column pgflow.nudge.chain_id is 'The chain to look at';
comment on column pgflow.nudge.nudge_id is 'The number of the nudge: a wake deletes only those it saw before it looked';

comment on column pgflow.unit_kind.kind is 'The one character that stands for it in the journal';
comment on column pgflow.unit_kind.name is 'Name in the view timeline';
comment on column pgflow.unit_kind.is_terminal is 'True if a unit of this kind is the outcome of its call';
comment on column pgflow.unit_kind.written_by is 'Functions that write it, and the occasion';

comment on column pgflow.unit.run_id is 'The run whose journal it is';
comment on column pgflow.unit.seq is 'Its place in the journal, from 1 without a gap';
comment on column pgflow.unit.call is 'Number of the call that it is about; 0 = the run itself';
comment on column pgflow.unit.kind is 'Kind of event: see unit_kind';
comment on column pgflow.unit.args_hash is 'Hash of the arguments, on step_completed of a transaction and on the kinds of the effect and decision ledgers';
comment on column pgflow.unit.name is 'Of the step, signal, workflow or stream that it is about; null where there is none';

comment on column pgflow.step_beat.run_id is 'The run whose step it is';
comment on column pgflow.step_beat.call is 'Number of the step''s call';
comment on column pgflow.step_beat.attempt is 'Number of the attempt';
comment on column pgflow.step_beat.beat_at is 'Time of the last sign of life of the step';
comment on column pgflow.step_beat.details is 'Progress that the step reported; null = none';

comment on column pgflow.owed.run_id is 'The run that owes it';
comment on column pgflow.owed.call is 'Number of the call that it is about';
comment on column pgflow.owed.opened_at is 'Time since which it is owed';
comment on column pgflow.owed.due_at is 'Time at which it should be closed; null = no time is set';
comment on column pgflow.owed.kind is 'effect, gate or obligation';
comment on column pgflow.owed.name is 'Of the effect, gate or obligation';
comment on column pgflow.owed.owed_to is 'To whom; null = nobody is named';
comment on column pgflow.owed.detail is 'Notice for whoever closes it; null = none';

comment on column pgflow.page.run_id is 'The run that somebody is needed for';
comment on column pgflow.page.opened_at is 'Time since which somebody is needed';
comment on column pgflow.page.next_at is 'Time at which somebody is told next, or the lease of whoever tells ends; infinity = never again';
comment on column pgflow.page.paged_at is 'Time at which somebody was last told; null = nobody yet';
comment on column pgflow.page.call is 'Number of the call that it is about; 0 = the run itself';
comment on column pgflow.page.tries is 'Number of tries since somebody was last told';
comment on column pgflow.page.kind is 'stuck or effect';
comment on column pgflow.page.last_error is 'Class of the error with which the last try failed; null = it did not';

comment on column pgflow.worker.worker_id is 'The number of the worker, never used again';
comment on column pgflow.worker.pid is 'Number of its process on its host';
comment on column pgflow.worker.beat is 'Counts up while it lives; others watch whether it moves';
comment on column pgflow.worker.beat_at is 'Time at which it last counted up, for people: nothing is decided by it';
comment on column pgflow.worker.started_at is 'Time at which it announced itself';
comment on column pgflow.worker.concurrency is 'Most runs that it holds at once';
comment on column pgflow.worker.stopping is 'True once it takes no further runs';
comment on column pgflow.worker.host is 'Name of the machine it runs on';
comment on column pgflow.worker.version is 'Version of pgflow-engine that it runs';
comment on column pgflow.worker.queues is 'Queues that it serves';

comment on column pgflow.policy.version is 'Its number; the greatest is in force';
comment on column pgflow.policy.set_at is 'Time at which it was put in force';
comment on column pgflow.policy.set_by is 'Name of whoever put it in force';
comment on column pgflow.policy.why is 'Reason for it';
comment on column pgflow.policy_rule.version is 'The version that it belongs to';
comment on column pgflow.policy_rule.rule is 'Its place: the first that fits counts';
comment on column pgflow.policy_rule.needs is 'gate = somebody''s leave, nothing = it may go ahead';
comment on column pgflow.policy_rule.risk is 'Fits effects of this risk; null = of any';
comment on column pgflow.policy_rule.name is 'Fits effects of this name; null = of any';
comment on column pgflow.policy_rule.amount is 'Path of an amount in the request; fits if it is above the limit, or no number';
comment on column pgflow.policy_rule.above is 'The limit of the amount';
comment on column pgflow.policy_rule.predicate is 'Fits requests of which this holds, or of which it cannot be said; null = any';

comment on column pgflow.imported.run_id is 'The number that the run has here';
comment on column pgflow.imported.imported_at is 'Time of the import';
comment on column pgflow.imported.generation is 'Number of the generation in its chain';
comment on column pgflow.imported.root is 'UUID of its chain: with the generation, the name of a run in all databases';
comment on column pgflow.imported.status is 'The status that it had where it was exported';
comment on column pgflow.imported.imported_by is 'Name of the session that imported it';
comment on column pgflow.imported.origin is 'Origin there: its number, and the run that started it';

comment on column pgflow.code.code_id is 'The number of this code';
comment on column pgflow.code.first_at is 'Time at which the first worker came that had it';
comment on column pgflow.code.last_at is 'Time at which a worker that had it last came or went; while one is there it does not count';
comment on column pgflow.code.is_pinned is 'True if runs that are started with this code stay with its version';
comment on column pgflow.code.workflow is 'Name of the workflow';
comment on column pgflow.code.version is 'Its version: the one that it was given, or the hash of the code';
comment on column pgflow.code.code_hash is 'Hash of the module that it is written in';
comment on column pgflow.code.alias_of is 'The name that the workflow has in this code, where the name here is an old one; null = it is its name';

comment on column pgflow.worker_code.worker_id is 'The worker';
comment on column pgflow.worker_code.code_id is 'The code that it has';

comment on column pgflow.code_patch.code_id is 'The code';
comment on column pgflow.code_patch.is_deprecated is 'True if only deprecate_patch() names it';
comment on column pgflow.code_patch.patch is 'Name of the change';

comment on column pgflow.run.origin_run_id is 'The run whose journal this one begins with; null = it began empty';
comment on column pgflow.run.origin_seq is 'Number of units it has from there: those with a seq up to this one';
comment on column pgflow.run.heritage is 'Other inheritance from there: the stems of keys and of random numbers, the beginning of its time, the tries that steps have; and the request that made it';

comment on column pgflow.unit.starts is 'Bodies that this commit allows to start: [[call, class, name, ordinal or key, hash of arguments], ...]; or the body of another run that the unit has its result from';

comment on column pgflow.carried.run_id is 'The run that may ask for it, or must take it back';
comment on column pgflow.carried.args_hash is 'Hash of the arguments with which the step or effect was called; 0 for a child';
comment on column pgflow.carried.seq is 'Place in the journal that was dropped; of an effect to be taken back, the place of its intent there; of a child, the place of its start in this run''s journal';
comment on column pgflow.carried.call is 'Number that the call has in the journal of this run, if it is there already; else one that tells these rows apart';
comment on column pgflow.carried.is_done is 'True: it had completed, and its result is carried. False: a step has its key, under which it runs again; an effect that must be taken back is open';
comment on column pgflow.carried.what is 'step (or transaction), effect and child: handed over where the run asks for the same; undo: an effect to be taken back before the run goes on';
comment on column pgflow.carried.name is 'Name of the step, effect or workflow';
comment on column pgflow.carried.key is 'Idempotency key under which its body was started; for a transaction, the number of the run and of the call; for a child, its key';
comment on column pgflow.carried.payload is 'Value that it returned; null where it is not done';
comment on column pgflow.carried.request is 'Arguments of an effect, by name';
comment on column pgflow.carried.note is 'Further facts on it: the place where it was done, its risk, whether it was accepted, which effect it takes back, the chain of a child';

comment on column pgflow.saga_effect.chain_id is 'The chain whose run did it';
comment on column pgflow.saga_effect.generation is 'The generation that did it and continued as new; 0 = the origin of a fork';
comment on column pgflow.saga_effect.call is 'Number that its call had there; of an origin''s and of an imported one, its place';
comment on column pgflow.saga_effect.n is 'Number among those of that call: the effects of a child come with its result';
comment on column pgflow.saga_effect.taken_back_in is 'The generation that has taken it back, or begun to, and was then rewound or restarted; null = none';
comment on column pgflow.saga_effect.name is 'Name of the effect';
comment on column pgflow.saga_effect.key is 'Its idempotency key, from which the key of its compensation is made';
comment on column pgflow.saga_effect.code is 'Place of the effect in the code: module and name; empty if its run did not record it';
comment on column pgflow.saga_effect.request is 'Its arguments, by name';
comment on column pgflow.saga_effect.result is 'Value that it returned; null where it was accepted first';
comment on column pgflow.saga_effect.ref is 'The counterparty''s reference under which it was accepted; null = it was not';

comment on column pgflow.loss.loss_id is 'Number of the loss';
comment on column pgflow.loss.noticed_at is 'Time at which a worker noticed';
comment on column pgflow.loss.acknowledged_at is 'Time at which it last knew how far the lost server''s log was durable';
comment on column pgflow.loss.closed_at is 'Time at which somebody saw to it; null = it is open';
comment on column pgflow.loss.acknowledged_bytes is 'Position up to which that log was durable then, in bytes';
comment on column pgflow.loss.kept_bytes is 'Position in it up to which the server at hand had come, in bytes';
comment on column pgflow.loss.old_timeline is 'Timeline of the lost log';
comment on column pgflow.loss.new_timeline is 'Timeline of the log that goes on';
comment on column pgflow.loss.worker_id is 'The worker that noticed';
comment on column pgflow.loss.pid is 'Number of its process';
comment on column pgflow.loss.run_count is 'Runs of which something is lost';
comment on column pgflow.loss.host is 'Name of its machine';
comment on column pgflow.loss.closed_by is 'Name of whoever saw to it';
comment on column pgflow.loss.why is 'Reason that they gave';
comment on column pgflow.loss.runs is 'Key, seq and end of each, up to a thousand';
