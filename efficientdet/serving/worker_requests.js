
"use strict"; // requests to the worker, which has the detector
let worker = null;

async function loadModel() {
  if (location.protocol === "file:") {
    throw new Error("A browser does not load the detector from file://. Run python -m http.server in this folder, and open "
      + "http://127.0.0.1:8000");
  }
  worker = new Worker("worker.js", {type: "module"});
  const failed = new Promise((_, reject) => {
    worker.onerror = () => reject(new Error("worker.js or onnxruntime.js cannot be loaded."));
  });
  return Promise.race([ask({}), failed]);
}

function detect(blob) {
  return ask({blob, minScore: LEAST_SCORE});
}

function ask(request) {
  return new Promise((resolve, reject) => {
    const {port1, port2} = new MessageChannel();
    port1.onmessage = ({data}) => (data.error ? reject(new Error(data.error)) : resolve(data));
    worker.postMessage(request, [port2]);
  });
}
