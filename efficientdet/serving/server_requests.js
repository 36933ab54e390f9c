
"use strict"; // requests to the server

let limits = null;

async function loadModel() {
  const reply = await fetch("/v1/model").catch(() => { throw new Error("The server does not respond."); });
  const about = await reply.json();
  limits = about.limits;
  return about;
}

async function detect(blob) {
  if (limits && blob.size > limits.max_request_bytes - 4096) {
    throw new Error(`image too large: ${blob.size} bytes; at most ${limits.max_request_bytes} bytes are accepted`);
  }
  const form = new FormData();
  form.append("image", blob, "image");
  for (;;) {
    const reply = await fetch(`/v1/detect?min_score=${LEAST_SCORE}`, {method: "POST", body: form});
    if (reply.ok) return await reply.json();
    if (reply.status !== 503) throw new Error((await reply.json()).error);  // 503 beyond the connections is no JSON
    await new Promise((done) => setTimeout(done, 1000 * Number(reply.headers.get("retry-after") || 1)));
  }
}
