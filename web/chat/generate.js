// One answer of the model, streamed, with its times.
import { ApiFailure, events, postJson } from "../common/api.js";

// The fields of a request that the settings name; what they leave out is the model's own.
export function samplingFields(settings) {
  const out = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"]) {
    if (typeof settings[name] === "number") out[name] = settings[name];
  }
  if (settings.tools) out.tools = settings.tools;
  if (settings.thinking) out.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return out;
}

function addCalls(answer, deltas) {
  for (const delta of deltas) {
    const call = (answer.calls[delta.index] ??= { id: "", name: "", arguments: "" });
    if (delta.id) call.id = delta.id;
    call.name += delta.function?.name ?? "";
    call.arguments += delta.function?.arguments ?? "";
  }
}

// The rate is that of the tokens behind the first, over the time in which they came.
function measure(answer, times) {
  const tokens = answer.usage?.completion_tokens ?? times.pieces;
  const seconds = (times.last - times.first) / 1000;
  answer.stats = {
    ttft: times.first ? (times.first - times.begin) / 1000 : null,
    tokens,
    counted: answer.usage !== undefined, // else a piece of the stream counts as a token
    rate: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null,
    thought: times.thoughtEnd ? (times.thoughtEnd - times.begin) / 1000 : null,
    prompt: answer.usage?.prompt_tokens ?? null,
    cached: answer.usage?.prompt_tokens_details?.cached_tokens ?? null,
  };
}

function takeDelta(answer, delta, times) {
  const thought = delta.reasoning_content ?? delta.reasoning;
  const said = delta.content || delta.tool_calls?.length;
  if (!thought && !said) return;
  times.last = performance.now();
  times.first ||= times.last;
  times.pieces += 1;
  if (thought) answer.reasoning += thought;
  if (said && answer.reasoning) times.thoughtEnd ||= times.last;
  answer.content += delta.content ?? "";
  addCalls(answer, delta.tool_calls ?? []);
}

// Fills `answer` as its pieces come, and calls changed() for each. Throws what goes wrong; `signal` stops it.
export async function generate(request, answer, signal, changed) {
  Object.assign(answer, { content: "", reasoning: "", calls: [] });
  const times = { begin: performance.now(), first: 0, last: 0, pieces: 0, thoughtEnd: 0 };
  const body = { ...request, stream: true, stream_options: { include_usage: true } };
  const response = await postJson("v1/chat/completions", body, { signal });
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiFailure(500, event.error.message);
    if (event.usage) answer.usage = event.usage;
    const choice = event.choices?.[0];
    if (choice) takeDelta(answer, choice.delta ?? {}, times);
    if (choice?.finish_reason) answer.finish = choice.finish_reason;
    measure(answer, times);
    changed();
  }
  throw new ApiFailure(0, "the connection ended before the answer did");
}
