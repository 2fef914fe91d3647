import createClient from "openapi-fetch";
import type { paths } from "./schema.ts";

const { GET, POST, DELETE } = createClient<paths>({ baseUrl: `http://${process.argv[2]}` });

async function must<Data>(asked: Promise<{ data?: Data; error?: unknown }>): Promise<Data> {
  const { data, error } = await asked;
  if (data === undefined) throw new Error(JSON.stringify(error));
  return data;
}

const send = {
  body: { topic: "ts", value: "v", headers: { order: "17" }, delay_ms: 3_600_000 },
  params: { header: { "Idempotency-Key": "ts-1" } },
};
const stored = await must(POST("/v1/messages", send));
console.log((await must(POST("/v1/messages", send))).id === stored.id);
console.log(stored.due_ms! > 2 ** 40);
const found = await must(GET("/v1/messages", { params: { query: { topic: ["ts"] } } }));
console.log(found.messages[0].id === stored.id);
const moved = await must(
  POST("/v1/messages/{id}/reschedule", { params: { path: { id: stored.id! } }, body: { delay_ms: 7_200_000 } }),
);
const path = { id: moved.new_id! };
console.log((await must(GET("/v1/messages/{id}", { params: { path } }))).state);
console.log((await must(DELETE("/v1/messages/{id}", { params: { path } }))).answer);
const where = { body: { where: { topic: ["ts"] } }, params: { query: { dry_run: true } } };
console.log((await must(POST("/v1/cancellations", where))).messages);
const { response } = await DELETE("/v1/messages/{id}", { params: { path: { id: "nobody" } } });
console.log(response.status);
