// Answers of Python in a worker of the browser, for the page as a folder of files without a server.
//
// Messages to the worker: {id, call, name, question}; from it: {id, result}, {id, error: {type, message}},
// {id, progress: {done, total, says}} and {ready: true}. A job has a worker to itself, which is ended to cancel it.

import { Problem } from "./lib/problem.js";

const SCRIPT = "worker.js";

export class WorkerTransport {
  constructor() {
    this.waits = "Starting Python in your browser …";
    this.line = new Line();
    this.beside = null;
    this.first = null;
    this.jobs = new Map();
  }

  /** What can be chosen lies beside the page, so that it shows before Python has started. */
  async catalog() {
    return (await fetch("catalog.json")).json();
  }

  ask(name, question, signal) {
    const answer = this.line.call("ask", name, question, signal);
    this.first ??= answer.catch(() => null);
    return answer;
  }

  /** In a worker beside the first one, so that sliders are answered meanwhile; ended when nobody wants it any more. */
  async curve(question, signal) {
    // A second Python that starts beside the first one would delay the first answer.
    await this.first;
    if (signal.aborted) throw new DOMException("asked again", "AbortError");
    this.beside ??= new Line();
    const line = this.beside;
    signal.addEventListener("abort", () => {
      line.end();
      if (this.beside === line) this.beside = null;
    });
    return line.call("ask", "curve", question, signal);
  }

  async start(kind, question) {
    const id = `job-${this.jobs.size + 1}`;
    const line = new Line();
    const job = { id, state: "running", done: 0, total: null, says: "", line };
    this.jobs.set(id, job);
    line.progress = (progress) => Object.assign(job, progress);
    line.call("ask", kind, question).then(
      (result) => {
        Object.assign(job, { state: "done", result });
        line.end();
      },
      (error) => {
        if (job.state === "running") Object.assign(job, { state: "failed", error: { message: error.message } });
        line.end();
      },
    );
    return this.job(id);
  }

  async job(id) {
    const { line, ...said } = this.jobs.get(id);
    return said;
  }

  async cancel(id) {
    const job = this.jobs.get(id);
    job.state = "cancelled";
    job.line.end();
  }

  async file(kind, question) {
    const { name, text, type } = await this.line.call("file", kind, question);
    return { name, blob: new Blob([text], { type }) };
  }
}

/** One worker and what it has been asked. */
class Line {
  constructor() {
    this.asked = new Map();
    this.last = 0;
    this.progress = null;
    this.worker = new Worker(new URL(SCRIPT, document.baseURI), { type: "module" });
    this.worker.onmessage = ({ data }) => this.take(data);
    this.worker.onerror = (event) => this.fail(event.message || "Python did not start in this browser.");
  }

  call(call, name, question, signal) {
    this.last += 1;
    const id = this.last;
    return new Promise((resolve, reject) => {
      this.asked.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => {
        this.asked.delete(id);
        this.worker.postMessage({ id, call: "forget" });
        reject(new DOMException("asked again", "AbortError"));
      });
      this.worker.postMessage({ id, call, name, question });
    });
  }

  take({ id, result, error, progress }) {
    if (progress) {
      this.progress?.(progress);
      return;
    }
    const waiting = this.asked.get(id);
    if (!waiting) return;
    this.asked.delete(id);
    if (error) waiting.reject(new Problem(error.message, error));
    else waiting.resolve(result);
  }

  fail(message) {
    for (const { reject } of this.asked.values()) reject(new Problem(message));
    this.asked.clear();
  }

  end() {
    this.worker.terminate();
  }
}
