// A node service behind the gateway, in which a payment and its key are one line of a file: what was cut off can be executed again.
//
// node node_payments.mjs 9000
// ONCEGATE_IDEMPOTENCY__ON_UNKNOWN=retry oncegate serve --upstream http://127.0.0.1:9000

import { createHash } from "node:crypto";
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, writeSync } from "node:fs";
import { createServer } from "node:http";

const FILE = "payments.jsonl";
const lines = existsSync(FILE) ? readFileSync(FILE, "utf8").split("\n") : [];
// What a crash has cut off in the midst of a line was never answered.
const payments = lines.slice(0, -1).map((line) => JSON.parse(line));
const file = openSync(FILE, "a");
if (lines.at(-1)) writeSync(file, "\n");
process.on("exit", () => closeSync(file));

/** The payment of this caller's key: the one that an earlier attempt has made, or a new one, which is on disk before it is answered. */
function pay(caller, key, amount) {
  const made = payments.find((each) => each.caller === caller && each.key === key);
  if (made) return made;
  const payment = { id: payments.length + 1, amount, caller, key };
  writeSync(file, JSON.stringify(payment) + "\n");
  fsyncSync(file);
  payments.push(payment);
  return payment;
}

function answer(response, status, value) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(value));
}

const shown = ({ id, amount }) => ({ id, amount });

createServer((request, response) => {
  let body = "";
  request.on("data", (piece) => (body += piece));
  request.on("end", () => {
    if (request.method === "GET") return answer(response, 200, payments.map(shown));
    const key = request.headers["idempotency-key"];
    let amount;
    try {
      amount = JSON.parse(body).amount;
    } catch {
      // answered below
    }
    if (!key || !Number.isInteger(amount)) {
      return answer(response, 400, { error: 'send an Idempotency-Key, and {"amount": 30}' });
    }
    // Two callers may have the same key. What tells them apart here is what does so at the gateway.
    const caller = createHash("sha256").update(request.headers.authorization ?? "").digest("hex");
    answer(response, 201, shown(pay(caller, key, amount)));
  });
}).listen(Number(process.argv[2]), "127.0.0.1");
