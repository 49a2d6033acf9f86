// Made by tools/contract.py; do not edit.
// A client of pgflow for node-postgres, contract version 1. Copy this file into your project.
// Pass a Client, a Pool, or a client with an open transaction of yours: then a start or a signal
// commits with your own rows. A bigint is a string here, as in node-postgres.

export const CONTRACT = 1;

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** What node-postgres calls Client, Pool and PoolClient. */
export interface Queryable {
  query(text: string, values: unknown[]): Promise<{ rows: any[] }>;
}

/** The SQLSTATE of an error of pgflow, such as PF001; null for any other error. */
export function codeOf(error: unknown): string | null {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === "string" && /^PF\d{3}$/.test(code) ? code : null;
}

const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => "_" + letter.toLowerCase());
const camel = (name: string) => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());

function named<T>(row: Record<string, unknown>): T {
  return Object.fromEntries(Object.entries(row).map(([name, value]) => [camel(name), value])) as T;
}

function written(value: unknown, type: string): unknown {
  return type.startsWith("json") && value !== undefined ? JSON.stringify(value) : value;
}

async function call(db: Queryable, fn: string, types: Record<string, string>, given: object) {
  const said = Object.entries(given).filter(([name, value]) => name in types && value !== undefined);
  const taken = said.map(([name], n) => `${snake(name)} => $${n + 1}::${types[name]}`);
  const values = said.map(([name, value]) => written(value, types[name]));
  return (await db.query(`select * from pgflow.${fn}(${taken.join(", ")})`, values)).rows;
}

export interface StartRun {
  workflow: string;
  input?: Json;
  key?: string;
  queue?: string;
  priority?: number;
  runAt?: Date;
  timeoutSeconds?: number;
  labels?: Json;
  metadata?: Json;
  tenant?: string;
  keyRetentionSeconds?: number;
  version?: string;
  ifTaken?: string;
  defaults?: Json;
  startId?: string;
  pool?: string;
  budget?: Json;
  keySeconds?: number;
  debounceSeconds?: number;
  maxWaitSeconds?: number;
  collect?: number;
}
export interface StartRunRow { runKey: string; runId: string; isNew: boolean; laneId: number; replaced: string | null }
/** Starts a run in the caller's transaction, or finds the one that the key already names (PF002 if that one differs). */
export async function startRun(db: Queryable, given: StartRun): Promise<StartRunRow> {
  const rows = await call(db, "start_run", {workflow: "text", input: "jsonb", key: "text", queue: "text", priority: "integer", runAt: "timestamp with time zone", timeoutSeconds: "double precision", labels: "jsonb", metadata: "jsonb", tenant: "text", keyRetentionSeconds: "integer", version: "text", ifTaken: "text", defaults: "json", startId: "uuid", pool: "text", budget: "jsonb", keySeconds: "double precision", debounceSeconds: "double precision", maxWaitSeconds: "double precision", collect: "integer"}, given);
  return named<StartRunRow>(rows[0]);
}

export interface StartRuns {
  workflow: string;
  runs: Json;
  queue?: string;
  priority?: number;
  runAt?: Date;
  timeoutSeconds?: number;
  labels?: Json;
  metadata?: Json;
  tenant?: string;
  version?: string;
  keysAreNew?: boolean;
  ifTaken?: string;
  defaults?: Json;
  startId?: string;
  pool?: string;
  budget?: Json;
  keySeconds?: number;
}
export interface StartRunsRow { runKey: string; runId: string; isNew: boolean; laneId: number }
/** Starts many runs of one workflow, all or none. */
export async function startRuns(db: Queryable, given: StartRuns): Promise<StartRunsRow[]> {
  const rows = await call(db, "start_runs", {workflow: "text", runs: "jsonb", queue: "text", priority: "integer", runAt: "timestamp with time zone", timeoutSeconds: "double precision", labels: "jsonb", metadata: "jsonb", tenant: "text", version: "text", keysAreNew: "boolean", ifTaken: "text", defaults: "json", startId: "uuid", pool: "text", budget: "jsonb", keySeconds: "double precision"}, given);
  return rows.map((row) => named<StartRunsRow>(row));
}

export interface SendSignal {
  key: string;
  name: string;
  payload?: Json;
  tenant?: string;
  sentBy?: string;
  idempotencyKey?: string;
}
/** Sends a signal to a run in the caller's transaction. */
export async function sendSignal(db: Queryable, given: SendSignal): Promise<string> {
  const rows = await call(db, "send_signal", {key: "text", name: "text", payload: "json", tenant: "text", sentBy: "text", idempotencyKey: "text"}, given);
  return rows[0].send_signal;
}

export interface AnswerGate {
  gate: string;
  verdict: string;
  payloadHash?: string;
  value?: Json;
  reason?: string;
  by?: string;
  actingAs?: string[];
  handTo?: string;
  validUntil?: Date;
}
/** Answers a gate, in any transaction. */
export async function answerGate(db: Queryable, given: AnswerGate): Promise<string> {
  const rows = await call(db, "answer_gate", {gate: "text", verdict: "text", payloadHash: "text", value: "json", reason: "text", by: "text", actingAs: "text[]", handTo: "text", validUntil: "timestamp with time zone"}, given);
  return rows[0].answer_gate;
}

export interface SendUpdate {
  key: string;
  name: string;
  payload?: Json;
  updateId?: string;
  tenant?: string;
  sentBy?: string;
  replyTo?: string;
  replyAs?: string;
}
export interface SendUpdateRow { updateId: string; chainId: string; isNew: boolean }
/** Asks a run for an update in the caller's transaction, its arguments by their names. */
export async function sendUpdate(db: Queryable, given: SendUpdate): Promise<SendUpdateRow> {
  const rows = await call(db, "send_update", {key: "text", name: "text", payload: "json", updateId: "text", tenant: "text", sentBy: "text", replyTo: "text", replyAs: "text"}, given);
  return named<SendUpdateRow>(rows[0]);
}

export interface UpdateReply {
  key: string;
  updateId: string;
  tenant?: string;
}
export interface UpdateReplyRow { status: string; value: Json | null; error: Json | null }
/** State of an update. */
export async function updateReply(db: Queryable, given: UpdateReply): Promise<UpdateReplyRow> {
  const rows = await call(db, "update_reply", {key: "text", updateId: "text", tenant: "text"}, given);
  return named<UpdateReplyRow>(rows[0]);
}

export interface Result {
  key: string;
  tenant?: string;
}
export interface ResultRow { status: string; output: Json | null; error: Json | null; reason: string | null }
/** Status of the run that a key names and, once it has ended, its output or error. */
export async function result(db: Queryable, given: Result): Promise<ResultRow> {
  const rows = await call(db, "result", {key: "text", tenant: "text"}, given);
  return named<ResultRow>(rows[0]);
}

export interface RunStatus {
  key: string;
  tenant?: string;
}
/** queued, running, waiting, paused, stuck, completed, failed or cancelled. */
export async function runStatus(db: Queryable, given: RunStatus): Promise<string> {
  const rows = await call(db, "run_status", {key: "text", tenant: "text"}, given);
  return rows[0].run_status;
}

export interface RunState {
  key: string;
  tenant?: string;
}
/** Values that the run last set with set_state(). */
export async function runState(db: Queryable, given: RunState): Promise<Json> {
  const rows = await call(db, "run_state", {key: "text", tenant: "text"}, given);
  return rows[0].run_state;
}

export interface CancelRun {
  key: string;
  why?: string;
  tenant?: string;
  sentBy?: string;
  force?: boolean;
}
/** Asks for a run to be cancelled. */
export async function cancelRun(db: Queryable, given: CancelRun): Promise<string> {
  const rows = await call(db, "cancel_run", {key: "text", why: "text", tenant: "text", sentBy: "text", force: "boolean"}, given);
  return rows[0].cancel_run;
}

export interface PauseRun {
  key: string;
  why?: string;
  tenant?: string;
  sentBy?: string;
}
/** Asks for a run to be held. */
export async function pauseRun(db: Queryable, given: PauseRun): Promise<string> {
  const rows = await call(db, "pause_run", {key: "text", why: "text", tenant: "text", sentBy: "text"}, given);
  return rows[0].pause_run;
}

export interface ResumeRun {
  key: string;
  why?: string;
  tenant?: string;
  sentBy?: string;
}
/** Lets a paused or stuck run go on, once a worker looks, within its poll, or you call wake() after your commit. */
export async function resumeRun(db: Queryable, given: ResumeRun): Promise<string> {
  const rows = await call(db, "resume_run", {key: "text", why: "text", tenant: "text", sentBy: "text"}, given);
  return rows[0].resume_run;
}

export interface RetryRun {
  key: string;
  why?: string;
  tenant?: string;
  sentBy?: string;
  fromStep?: string;
  attempts?: number;
  effects?: string;
  children?: string;
}
/** Lets a stuck run go on with a fresh budget of attempts. */
export async function retryRun(db: Queryable, given: RetryRun): Promise<string> {
  const rows = await call(db, "retry_run", {key: "text", why: "text", tenant: "text", sentBy: "text", fromStep: "text", attempts: "integer", effects: "text", children: "text"}, given);
  return rows[0].retry_run;
}

export interface Publish {
  topic: string;
  payload?: Json;
  key?: string;
  runId?: string;
}
/** Publishes an event in the caller's transaction. */
export async function publish(db: Queryable, given: Publish): Promise<string> {
  const rows = await call(db, "publish", {topic: "text", payload: "json", key: "text", runId: "bigint"}, given);
  return rows[0].publish;
}

export interface SettleEffect {
  effectKey: string;
  verdict: string;
  value?: Json;
  why?: string;
  sentBy?: string;
}
/** Settles an effect whose outcome is unknown, or that was accepted. */
export async function settleEffect(db: Queryable, given: SettleEffect): Promise<string> {
  const rows = await call(db, "settle_effect", {effectKey: "text", verdict: "text", value: "json", why: "text", sentBy: "text"}, given);
  return rows[0].settle_effect;
}

export interface Discharge {
  obligationKey: string;
  evidence?: Json;
  sentBy?: string;
}
/** Closes an obligation. */
export async function discharge(db: Queryable, given: Discharge): Promise<string> {
  const rows = await call(db, "discharge", {obligationKey: "text", evidence: "json", sentBy: "text"}, given);
  return rows[0].discharge;
}

export interface RunsRow {
  key: string; status: string; workflow: string; queue: string; reason: string | null;
    priority: number | null; createdAt: Date | null; since: Date | null; runAt: Date | null;
    deadlineAt: Date | null; finishedAt: Date | null; attempt: number | null;
    workerId: number | null; generation: number | null; labels: Json | null; input: Json | null;
    output: Json | null; error: Json | null; tenant: string | null; version: string | null;
    runId: string; chainId: string; parentRunId: string | null; originKey: string | null;
    originGeneration: number | null; originSeq: number | null; originRunId: string | null;
    reasonCode: string | null; reasonDetail: Json | null;
}

export interface GatesRow {
  gate: string; key: string; workflow: string; name: string; askedAt: Date | null;
    expiresAt: Date | null; approvers: string[] | null; quorum: number | null;
    answers: Json | null; request: Json | null; payloadHash: string | null;
    edited: boolean | null; needsValue: boolean | null; shape: Json | null;
    onTimeout: string | null; escalate: string[] | null; decision: string | null;
    why: string | null; evidence: Json | null; path: Json | null; tenant: string | null;
    runId: string; call: number | null;
}

export interface EffectsRow {
  key: string; effect: string; name: string; status: string; risk: string | null;
    request: Json | null; result: Json | null; error: Json | null; ref: string | null;
    attempts: string | null; unknowns: string | null; saidBy: string | null;
    decision: string | null; compensates: string | null; policyVersion: number | null;
    intendedAt: Date | null; closedAt: Date | null; seq: number | null; call: number | null;
    generation: number | null; tenant: string | null; runId: string; origin: Json | null;
    owed: string | null;
}

export interface ObligationsRow {
  key: string; kind: string; name: string; state: string | null; openedAt: Date | null;
    dueAt: Date | null; owedTo: string | null; effect: string; ref: string | null;
    detail: Json | null; tenant: string | null; call: number | null; runId: string;
    pagedAt: Date | null; reason: string | null; beatAt: Date | null; beatDetails: Json | null;
    silentAt: Date | null; holder: string | null; outlives: boolean | null;
}

export interface QueuesRow {
  queue: string; queued: string | null; running: string | null; waiting: string | null;
    paused: string | null; stuck: string | null; oldestQueuedAt: Date | null;
    maxRunning: number | null; maxDeaths: number | null; pausedAt: Date | null;
    refusesUnknown: boolean | null; rules: Json | null;
}

export interface RatesRow {
  minute: Date | null; queue: string; started: number | null; completed: number | null;
    failed: number | null; cancelled: number | null; queued: number | null;
    oldestSeconds: number | null; took: number[] | null;
}

export interface Views { runs: RunsRow; gates: GatesRow; effects: EffectsRow; obligations: ObligationsRow; queues: QueuesRow; rates: RatesRow }

const COLUMNS = {
  runs: ["key", "status", "workflow", "queue", "reason", "priority", "createdAt", "since",
    "runAt", "deadlineAt", "finishedAt", "attempt", "workerId", "generation", "labels", "input",
    "output", "error", "tenant", "version", "runId", "chainId", "parentRunId", "originKey",
    "originGeneration", "originSeq", "originRunId", "reasonCode", "reasonDetail"],
  gates: ["gate", "key", "workflow", "name", "askedAt", "expiresAt", "approvers", "quorum",
    "answers", "request", "payloadHash", "edited", "needsValue", "shape", "onTimeout",
    "escalate", "decision", "why", "evidence", "path", "tenant", "runId", "call"],
  effects: ["key", "effect", "name", "status", "risk", "request", "result", "error", "ref",
    "attempts", "unknowns", "saidBy", "decision", "compensates", "policyVersion", "intendedAt",
    "closedAt", "seq", "call", "generation", "tenant", "runId", "origin", "owed"],
  obligations: ["key", "kind", "name", "state", "openedAt", "dueAt", "owedTo", "effect", "ref",
    "detail", "tenant", "call", "runId", "pagedAt", "reason", "beatAt", "beatDetails",
    "silentAt", "holder", "outlives"],
  queues: ["queue", "queued", "running", "waiting", "paused", "stuck", "oldestQueuedAt",
    "maxRunning", "maxDeaths", "pausedAt", "refusesUnknown", "rules"],
  rates: ["minute", "queue", "started", "completed", "failed", "cancelled", "queued",
    "oldestSeconds", "took"],
} as const;
/** Rows of a view whose columns have these values, in an order, at most so many. */
export async function find<V extends keyof Views>(
  db: Queryable, view: V, where: Partial<Views[V]> = {},
  options: { orderBy?: keyof Views[V] & string; descending?: boolean; limit?: number } = {},
): Promise<Views[V][]> {
  const known: readonly string[] = COLUMNS[view];
  const column = (name: string) => {
    if (!known.includes(name)) throw new Error(`${view} has no column ${name}`);
    return `"${snake(name)}"`;
  };
  const said = Object.entries(where).filter(([, value]) => value !== undefined);
  const tests = said.map(([name], n) => `${column(name)} = $${n + 1}`);
  const order = options.orderBy ?? known[0];
  const text = `select * from pgflow.${view}`
    + (tests.length ? ` where ${tests.join(" and ")}` : "")
    + ` order by ${column(order)}${options.descending ? " desc" : ""} limit $${said.length + 1}`;
  const values = [...said.map(([, value]) => value), options.limit ?? 100];
  return (await db.query(text, values)).rows.map((row) => named<Views[V]>(row));
}

/** Wait until a run has ended, and return its result; look every so many milliseconds. */
export async function ended(db: Queryable, key: string, everyMs = 500): Promise<ResultRow> {
  for (;;) {
    const found = await result(db, { key });
    if (["completed", "failed", "cancelled"].includes(found.status)) return found;
    await new Promise((wake) => setTimeout(wake, everyMs));
  }
}
