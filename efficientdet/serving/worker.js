// Detection by ONNX Runtime Web, in a worker so that the page stays responsive. Replies are those of the HTTP API.

import * as ort from "./onnxruntime.js";

let session, classes;
let last = Promise.resolve(); // requests are answered one after another

async function load() {
  const reply = await fetch("model.json");
  if (!reply.ok) throw new Error(`model.json: the server responds ${reply.status}`);
  const about = await reply.json();
  session = await ort.InferenceSession.create("detector.onnx");
  classes = about.classes;
  const threads = ort.env.wasm.numThreads;
  return {...about, runs_on: `WebAssembly, ${threads} ${threads === 1 ? "thread" : "threads"}`};
}

async function detect(blob, minScore) {
  if (!session) throw new Error("the detector is not loaded");
  const start = performance.now();
  const {data, width, height} = await pixelsOf(blob);
  const image = new ort.Tensor("uint8", new Uint8Array(data.buffer), [height, width, 4]);
  const found = await session.run({image});
  const detections = [];
  found.scores.data.forEach((score, at) => {
    const [top, left, bottom, right] = [...found.boxes.data.subarray(4 * at, 4 * at + 4)].map((side) => rounded(side, 2));
    if (!(score >= minScore && [top, left, bottom, right].every(Number.isFinite))) return;
    const {id, name} = classes[found.classes.data[at]];
    detections.push({box: [left, top, right, bottom], score: rounded(score, 5), class_id: id, class_name: name});
  });
  return {images: [{width, height, detections}], time_ms: rounded(performance.now() - start, 1)};
}

async function pixelsOf(blob) { // upright; colors as stored, which is what the detector was trained on
  const bitmap = await createImageBitmap(blob, {colorSpaceConversion: "none"});
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

function rounded(value, digits) {
  return Math.round(value * 10 ** digits) / 10 ** digits;
}

async function answer({blob, minScore}, port) {
  try {
    port.postMessage(await (blob ? detect(blob, minScore) : load()));
  } catch (error) {
    port.postMessage({error: error.message});
  }
}

onmessage = ({data, ports}) => {
  last = last.then(() => answer(data, ports[0]));
};
