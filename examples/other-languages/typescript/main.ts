// Start an order, answer its gate, signal its payment, and read its result:
// npm install && npx tsc && node out/main.js order-1
import { Client } from "pg";
import { answerGate, codeOf, ended, find, sendSignal, startRun } from "./pgflow";

async function answerAndPay(db: Client, order: string): Promise<void> {
  let [gate] = await find(db, "gates", { key: order });
  while (!gate) {
    await new Promise((wake) => setTimeout(wake, 100));
    [gate] = await find(db, "gates", { key: order });
  }
  await answerGate(db, {
    gate: gate.gate, verdict: "approve", payloadHash: gate.payloadHash ?? undefined,
  });
  console.log(`approved ${gate.name} of ${(gate.request as { cents: number }).cents} cents`);

  await sendSignal(db, { key: order, name: "paid", payload: { by: "card" } });
}

async function main(order: string): Promise<void> {
  const db = new Client({ connectionString: process.env.PGFLOW_DSN });
  await db.connect();
  try {
    // In a transaction of yours: the order and its run are there together, or not at all.
    await db.query("begin");
    const input = { order_id: order, cents: 25_000 };
    const started = await startRun(db, { workflow: "fulfil", key: order, input });
    await db.query("commit");
    console.log(`started ${started.runKey}${started.isNew ? "" : " before"}`);

    if (started.isNew) await answerAndPay(db, order); // else a run before this one has
    const run = await ended(db, order, 100);
    console.log(`${run.status}: ${run.output}`);

    // A mistake has a code of its own.
    const wrong = startRun(db, { workflow: "fulfil", input: { order_id: order } });
    console.log(await wrong.then(() => "accepted", codeOf));
  } finally {
    await db.end();
  }
}

main(process.argv[2] ?? "order-1").catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
