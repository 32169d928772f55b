// Answers of a server: the HTTP API below the folder in which the page lies.

import { Problem } from "./lib/problem.js";

const ROOT = "api/v1/";

export class HttpTransport {
  async catalog() { return (await this.send("GET", "catalog")).json(); }

  async ask(name, question, signal) { return (await this.send("POST", name, question, signal)).json(); }

  async start(kind, question) { return (await this.send("POST", "jobs", { question: kind, ...question })).json(); }

  async job(id) { return (await this.send("GET", `jobs/${encodeURIComponent(id)}`)).json(); }

  async cancel(id) { await this.send("DELETE", `jobs/${encodeURIComponent(id)}`); }

  async file(kind, question) {
    const answer = await this.send("POST", `export/${kind}`, question);
    const name = answer.headers.get("content-disposition")?.match(/filename="([^"]+)"/)?.[1];
    return { name: name ?? `infercast.${kind}`, blob: await answer.blob() };
  }

  async send(method, path, body, signal) {
    const request = { method, signal, headers: { accept: "application/json" } };
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
    try { said = await answer.json(); } catch { /* not JSON: the status says it all */ }
    throw new Problem(said.error?.message ?? `The server answered with status ${answer.status}.`, { ...said.error, memory: said.memory });
  }
}
