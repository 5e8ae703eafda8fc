// Reads bodies from stdin, each preceded by its length. For each it prints a line with what a server in Node would bill.
const most = 1e9;

function number(v) {
  const n = typeof v === "boolean" || typeof v === "number" ? Number(v) : typeof v === "string" && v.trim() ? Number(v) : 0;
  return Number.isNaN(n) ? 0 : Math.min(Math.ceil(n), most);
}

function parse(body) {
  for (const encoding of ["utf8", "utf16le"]) {
    try {
      return JSON.parse(body.toString(encoding).replace(/^\uFEFF/, ""));
    } catch {}
  }
}

function bill(body) {
  const call = parse(body);
  if (typeof call !== "object" || call === null) return {};
  const gemini = Object(call.generationConfig), ollama = Object(call.options);
  const limit = Math.max(0, ...[call.max_tokens, call.max_completion_tokens, call.max_output_tokens, gemini.maxOutputTokens, ollama.num_predict].map(number));
  const choices = Math.max(1, number(call.n), number(call.best_of), number(gemini.candidateCount));
  return { model: typeof call.model === "string" ? call.model : "", tokens: Math.min(limit * choices, most) };
}

let pending = Buffer.alloc(0);
process.stdin.on("data", (part) => {
  pending = Buffer.concat([pending, part]);
  while (pending.length >= 4 && pending.length >= 4 + pending.readUInt32BE(0)) {
    const end = 4 + pending.readUInt32BE(0);
    process.stdout.write(JSON.stringify(bill(pending.subarray(4, end))) + "\n");
    pending = pending.subarray(end);
  }
});
