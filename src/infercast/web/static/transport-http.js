// Answers of a server: the HTTP API below the folder in which the page lies.

import { Problem } from "./lib/problem.js";

const ROOT = "api/v1/";
const POLL = 350;

export class HttpTransport {
  async catalog() {
    return (await this.send("GET", "catalog")).json();
  }

  /** An answer at once; a simulation that takes too long for that is asked for as a job, with its intervals. */
  async ask(name, question, signal) {
    try {
      return await (await this.send("POST", name, question, signal)).json();
    } catch (error) {
      if (error.type !== "TooLongError" || name !== "simulate") throw error;
      return this.wait(name, { ...question, intervals: true }, signal);
    }
  }

  /** A load curve: as a job, because one that nobody wants any more must not keep others waiting. */
  async curve(question, signal) {
    return this.wait("curve", question, signal);
  }

  /** The result of a job, which ends when nobody wants it any more. */
  async wait(kind, question, signal) {
    const { id } = await this.start(kind, question);
    if (signal.aborted) await this.cancel(id);
    const end = () => {
      this.cancel(id).catch(() => null);
    };
    signal.addEventListener("abort", end);
    try {
      for (;;) {
        const said = await this.job(id, signal);
        if (said.state === "done") return said.result;
        if (said.state === "failed") throw new Problem(said.error?.message ?? "The job failed.");
        if (said.state === "cancelled") throw new DOMException("asked again", "AbortError");
        await new Promise((resolve) => setTimeout(resolve, POLL));
        signal.throwIfAborted();
      }
    } finally {
      signal.removeEventListener("abort", end);
    }
  }

  async start(kind, question) {
    return (await this.send("POST", "jobs", { question: kind, ...question })).json();
  }

  async job(id, signal) {
    return (await this.send("GET", `jobs/${encodeURIComponent(id)}`, undefined, signal)).json();
  }

  async cancel(id) {
    await this.send("DELETE", `jobs/${encodeURIComponent(id)}`, undefined, undefined, true);
  }

  async file(kind, question) {
    const answer = await this.send("POST", `export/${kind}`, question);
    const name = answer.headers.get("content-disposition")?.match(/filename="([^"]+)"/)?.[1];
    return { name: name ?? `infercast.${kind}`, blob: await answer.blob() };
  }

  /** `keep`: also when the page is being left. */
  async send(method, path, body, signal, keep = false) {
    const request = { method, signal, keepalive: keep, headers: { accept: "application/json" } };
    if (body !== undefined) {
      request.body = JSON.stringify(body);
      request.headers["content-type"] = "application/json";
    }
    let answer;
    try {
      answer = await fetch(ROOT + path, request);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("The server does not answer; is `infercast web` still running?", { type: "Connection" });
    }
    if (answer.ok) return answer;
    let said = {};
    try {
      said = await answer.json();
    } catch {
      /* not JSON: the status says it all */
    }
    throw new Problem(said.error?.message ?? `The server answered with status ${answer.status}.`, {
      ...said.error,
      memory: said.memory,
    });
  }
}
