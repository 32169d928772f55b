// Where answers come from: a server over HTTP, or Python in a worker of the browser. Both have the same functions.
//
//   catalog()                      what can be chosen
//   ask(name, question, signal)    an answer at once: simulate, memory
//   curve(question, signal)        a load curve, which takes some seconds
//   start(kind, question)          a job; job(id) says how far it is, cancel(id) ends it
//   file(kind, question)           an export as a Blob with a name
//   waits                          what to say before the first answer, where that takes long
//
// An error is thrown as a Problem with the sentence to show.

import { HttpTransport } from "./transport-http.js";
import { WorkerTransport } from "./transport-worker.js";

/** The transport that the page asks for: <meta name="infercast-transport" content="http" or "worker">. */
export function connect() {
  const kind = document.querySelector('meta[name="infercast-transport"]')?.content ?? "http";
  return kind === "worker" ? new WorkerTransport() : new HttpTransport();
}
