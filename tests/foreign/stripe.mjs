// Makes each of GIVEN.calls with stripe-node, one after the other, and prints what the caller of the SDK gets of it.
import Stripe from "stripe";

const { url, calls } = JSON.parse(process.env.GIVEN);
const { hostname, port } = new URL(url);
const results = [];
for (const { resource, key, amount, retries } of calls) {
  const stripe = new Stripe("sk_test_1", { host: hostname, port, protocol: "http", maxNetworkRetries: retries, telemetry: false });
  try {
    const made = await stripe[resource].create({ amount, currency: "eur" }, key === null ? {} : { idempotencyKey: key });
    results.push({ made: made.id });
  } catch (error) {
    const { rawType, code, message, statusCode } = error;
    results.push({ raised: error.constructor.name, type: rawType, code, message, status: statusCode });
  }
}
// It doesn't read the answers that it retries, so that their connections would keep the process alive.
process.stdout.write(JSON.stringify(results), () => process.exit());
