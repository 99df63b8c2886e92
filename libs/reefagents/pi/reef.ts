// Reef's own part of Pi: it keeps the receipts of answers, and reports on them with /good and /bad.
import { appendFileSync } from "node:fs";

const kept = process.env.REEF_RECEIPTS;
const url = process.env.REEF_URL;
const receipts: string[] = [];

async function report(score: number, words: string): Promise<string> {
  const receipt = receipts.at(-1);
  if (!receipt) return "there is no answer yet";
  const body: Record<string, unknown> = { references: [receipt], score };
  if (words.trim()) body.feedback = words.trim();
  const answer = await fetch(`${url}/reef/report`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      authorization: `Bearer ${process.env.REEF_TOKEN}`,
      "x-reef-scenario": process.env.REEF_SCENARIO ?? "default",
    },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(5000),
  });
  return answer.ok ? `reported on ${receipt}` : `not reported: ${answer.status} ${await answer.text()}`;
}

export default function (pi: any) {
  pi.on("after_provider_response", (event: any) => {
    const receipt = event.headers?.["x-reef-agent-record-id"];
    if (!receipt) return;
    receipts.push(receipt);
    if (kept) {
      try {
        appendFileSync(kept, `${receipt}\n`, { mode: 0o600 });
      } catch {
        // a full disk is no reason to end a conversation
      }
    }
  });
  // Without a terminal Pi ends in silence, with exit status 0, if a model's context is too small for the question.
  let overflow = "";
  pi.on("message_end", (event: any) => {
    if (event.message?.role !== "assistant") return;
    const { stopReason, errorMessage, usage } = event.message;
    const why = stopReason === "error" ? String(errorMessage) : "";
    overflow = /maximum context length/.test(why) ? why : "";
    // Pi asks for one token if its own text fills the context.
    if (stopReason === "length" && usage?.output <= 1) overflow = "the model's context has no room for one";
  });
  pi.on("session_shutdown", (_event: any, ctx: any) => {
    if (!overflow || ctx?.hasUI) return;
    console.error(`Reef: no answer: ${overflow} (docs/connect-an-agent.md)`);
    process.exitCode = 1;
  });
  for (const [name, score] of [["good", 1], ["bad", 0]] as const) {
    pi.registerCommand(name, {
      description: `tell Reef that the last answer was ${name} (words may follow)`,
      handler: async (words: string, ctx: any) => {
        const said = await report(score, words ?? "").catch((error) => `not reported: ${error.message}`);
        ctx.ui.notify(`Reef: ${said}`, "info");
      },
    });
  }
  pi.registerCommand("receipts", {
    description: "the receipts of this session's answers",
    handler: async (_words: string, ctx: any) => ctx.ui.notify(receipts.join("\n") || "none yet", "info"),
  });
}
