// Both generations of the TypeScript SDK against a running server: node smoke.mjs v1|v2 URL
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [generation, url] = process.argv.slice(2);
const require = createRequire(path.join(process.cwd(), "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

async function connected() {
  const info = { name: "smoke", version: "0.0.0" };
  if (generation === "v1") {
    const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const client = new Client(info);
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    return client;
  }
  const { Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client");
  const client = new Client(info);
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return client;
}

const client = await connected();
const text = async (name, args) => {
  const result = await client.callTool({ name, arguments: args });
  return { error: result.isError === true, text: result.content[0].text };
};
const ids = (answer) => [...answer.text.matchAll(/^\d+\. \[([^\]]+)\]/gm)].map((match) => match[1]);

const { tools } = await client.listTools();
assert.equal(tools.length, 6);
const opened = await text("open_search_session", { default_top_k: 3 });
const session_id = opened.text.split("\n")[0].replace("session_id: ", "");
const first = await text("search_papers", { query: "learning", session_id });
const second = await text("search_papers", { query: "learning", session_id });
assert.equal(new Set([...ids(first), ...ids(second)]).size, 6);
const got = await text("get_papers", { paper_ids: [ids(first)[0], "nope"] });
assert.deepEqual(ids(got), [ids(first)[0]]);
const wrong = await text("search_papers", { query: "learning", topk: 3 });
assert.ok(wrong.error && wrong.text.startsWith("error[invalid_argument]"));
assert.ok(!(await text("close_search_session", { session_id })).error);
assert.ok((await text("search_session_status", { session_id })).text.startsWith("error[session_closed]"));
await client.close();
console.log(`typescript ${generation}: passed`);
