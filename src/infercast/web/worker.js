// Python in a worker of the browser: starts it, and passes it what the page asks.
//
// Takes {id, call, name, question} and {id, call: "forget"}; gives {id, result}, {id, error} and {id, progress}.

import { loadPyodide } from "./python/pyodide.mjs";

const SITE = "/lib/python3.12/site-packages";
const HERE = new URL("./", self.location.href);

const waiting = [];
let working = false;
const ready = start();

self.onmessage = ({ data }) => {
  if (data.call === "forget") {
    const place = waiting.findIndex(({ id }) => id === data.id);
    if (place >= 0) waiting.splice(place, 1);
    return;
  }
  waiting.push(data);
  work();
};

async function work() {
  if (working) return;
  working = true;
  let respond;
  try {
    respond = await ready;
  } catch (error) {
    for (const { id } of waiting.splice(0)) self.postMessage({ id, error: { type: "Start", message: `Python did not start in this browser: ${error.message}` } });
    working = false;
    return;
  }
  while (waiting.length) {
    const { id, call, name, question } = waiting.shift();
    const tell = (says) => self.postMessage({ id, progress: { says } });
    let said;
    try {
      said = JSON.parse(respond(call, name ?? "", JSON.stringify(question ?? {}), tell));
    } catch (error) {
      said = { error: { type: "Error", message: String(error.message).trim().split("\n").pop() } };
    }
    self.postMessage({ id, ...said });
    // Lets a message in that says what nobody waits for any more.
    await new Promise((resolve) => setTimeout(resolve, 0));
  }
  working = false;
}

async function start() {
  const asked = ["pyodide.asm.js.gz", "numpy.zip", "infercast.zip", "backtrace.so"].map((name) => bytes(`python/${name}`));
  serveUnpacked("pyodide.asm.wasm");
  const script = await unpack(await asked[0], "text/javascript");
  await import(URL.createObjectURL(await script.blob()));
  const python = await loadPyodide({ indexURL: new URL("python/", HERE).href });
  python.FS.writeFile("/tmp/backtrace.so", new Uint8Array(await asked[3]));
  python.runPython("import ctypes; ctypes.CDLL('/tmp/backtrace.so', ctypes.RTLD_GLOBAL)");
  python.unpackArchive(await asked[1], "zip", { extractDir: SITE });
  python.unpackArchive(await asked[2], "zip", { extractDir: SITE });
  const bootstrap = python.pyimport("infercast.web.pyodide");
  bootstrap.prepare((name) => piece(name));
  return bootstrap.respond;
}

async function bytes(path) {
  const answer = await fetch(new URL(path, HERE));
  if (!answer.ok) throw new Error(`${path} is missing (status ${answer.status})`);
  return answer.arrayBuffer();
}

/** A compressed file as the answer that it would be uncompressed. */
async function unpack(content, type) {
  const stream = new Response(content).body.pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream, { headers: { "content-type": type } });
}

/** Whoever fetches this file gets the compressed one, unpacked. */
function serveUnpacked(name) {
  const plain = self.fetch.bind(self);
  self.fetch = async (asked, ...more) => {
    const url = String(asked.url ?? asked);
    if (!url.endsWith(`/${name}`)) return plain(asked, ...more);
    return unpack(await (await plain(`${url}.gz`)).arrayBuffer(), "application/wasm");
  };
}

/** A piece of an archive, at once: Python cannot wait for a promise in the middle of a lookup. */
function piece(name) {
  const request = new XMLHttpRequest();
  request.open("GET", new URL(name, HERE), false);
  request.responseType = "arraybuffer";
  request.send();
  if (request.status !== 200) throw new Error(`${name} is missing (status ${request.status})`);
  return new Uint8Array(request.response);
}
