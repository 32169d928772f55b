/** Something that could not be answered, with one sentence for people. */
export class Problem extends Error {
  constructor(message, details = {}) {
    super(message);
    this.name = "Problem";
    this.type = details.type ?? "Error";
    this.field = details.field ?? null;
    this.memory = details.memory ?? null;
  }
}
