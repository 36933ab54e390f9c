
"use strict";
const LEAST_SCORE = 0.05; // requested from the detector; the slider filters further
const THUMBNAIL = 208;
const LETTERS = 13; // minimum font size of a label in screen pixels
const WEBCAM_SIDE = 960; // longer side of a frame that is sent, in pixels
const $ = (id) => document.getElementById(id);
const state = {images: [], current: null, colors: new Map(), hidden: new Set(), key: "score", ascending: false, marked: null,
               camera: null, waiting: [], processing: false};

async function start() { // loadModel and detect: server_requests.js or worker_requests.js
  const about = await loadModel();
  const classes = `${about.classes.length} ${about.classes.length === 1 ? "class" : "classes"}`;
  $("model").textContent = [about.model, classes, about.runs_on].filter(Boolean).join(" · ");
  for (const one of about.classes) state.colors.set(one.id, one.color);
}

function prepared(found) {
  return found.map((one) => {
    const [left, top, right, bottom] = one.box;
    return {...one, x: left, y: top, width: right - left, height: bottom - top};
  });
}

// Uploaded images

function add(files) {
  stopCamera();
  const images = [...files].filter((file) => file.type.startsWith("image/") || /\.(bmp|gif|jpe?g|jp2|png|tiff?|webp)$/i.test(file.name));
  if (files.length && !images.length) setStatus(`${files[0].name || "The file"} is not an image.`, true);
  for (const file of images) {
    const image = newImage(file.name || "pasted", file);
    image.item = thumbnailOf(image);
    state.images.push(image);
    state.waiting.push(image);
    if (!state.current || images.length === 1) show(image);
  }
  $("clear").disabled = !state.images.length;
  processQueue();
}

async function processQueue() {
  if (state.processing) return;
  state.processing = true;
  while (state.waiting.length) await detectIn(state.waiting.shift());
  state.processing = false;
}

function newImage(name, blob) { // found, size: null until the detector has answered; foreign: the browser cannot decode the image
  return {name, blob, bitmap: null, foreign: false, found: null, size: null, error: "", milliseconds: 0};
}

async function load(image) {
  if (image.bitmap || image.foreign) return;
  image.bitmap = await createImageBitmap(image.blob).catch(() => null);
  image.foreign = !image.bitmap;
}

async function detectIn(image) {
  await load(image);
  drawThumbnail(image);
  if (image === state.current) refresh();
  try {
    const reply = await detect(image.blob);
    const result = reply.images[0];
    image.found = prepared(result.detections);
    image.size = [result.width, result.height];
    image.milliseconds = reply.time_ms;
  } catch (error) {
    image.error = error.message;
  }
  drawThumbnail(image);
  if (image === state.current) refresh();
  else image.bitmap = null; // decoded images of a long list would fill the memory
}

function thumbnailOf(image) {
  const item = document.createElement("li"), button = document.createElement("button");
  button.type = "button";
  button.title = image.name;
  button.setAttribute("aria-label", image.name);
  button.append(document.createElement("canvas"));
  button.addEventListener("click", () => show(image));
  item.append(button);
  $("thumbnails").append(item);
  return item;
}

function drawThumbnail(image) {
  const button = image.item.firstChild, canvas = button.querySelector("canvas");
  if (image.bitmap) {
    const scale = THUMBNAIL / Math.max(image.bitmap.width, image.bitmap.height);
    canvas.width = Math.max(1, Math.round(image.bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(image.bitmap.height * scale));
    canvas.getContext("2d").drawImage(image.bitmap, 0, 0, canvas.width, canvas.height);
  }
  button.querySelector(".count")?.remove();
  const count = document.createElement("span");
  count.className = image.error ? "count bad" : "count";
  count.textContent = image.error ? "!" : String(shownOf(image).length);
  if (image.error || image.found) button.append(count);
}

async function show(image) {
  if (image !== state.camera?.image) stopCamera();
  if (state.current && state.current !== image) state.current.bitmap = null;
  state.current = image;
  state.marked = null;
  await load(image);
  if (image === state.current) refresh();
}

function step(by) {
  const place = state.images.indexOf(state.current) + by;
  if (!state.images[place]) return;
  show(state.images[place]);
  state.current.item.scrollIntoView({block: "nearest", inline: "nearest"});
}

function clear() {
  stopCamera();
  Object.assign(state, {images: [], waiting: [], current: null, marked: null});
  state.hidden.clear();
  $("thumbnails").replaceChildren();
  $("clear").disabled = true;
  refresh();
}

// Display of the current image

function aboveThreshold(image) {
  return (image?.found || []).filter((one) => one.score >= Number($("score").value));
}

function shownOf(image) {
  return aboveThreshold(image).filter((one) => !state.hidden.has(one.class_id));
}

function setStatus(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

function refresh() {
  const image = state.current;
  for (const other of state.images) other.item.firstChild.setAttribute("aria-current", String(other === image));
  $("stage").classList.toggle("empty", !image);
  $("stage").classList.toggle("busy", Boolean(image && !image.found && !image.error));
  $("invitation").hidden = Boolean(image);
  $("image").hidden = !image;
  const found = image?.found;
  $("json").disabled = $("png").disabled = !found;
  if (image) drawCurrent();
  fillClasses();
  fillTable();
  if (!image) setStatus("");
  else if (image.error) setStatus(`${image.name}: ${image.error}`, true);
  else if (!found) setStatus(`${image.name}: detecting …`);
  else {
    const foreign = image.foreign ? " · the browser does not support this image format" : "";
    $("image").setAttribute("aria-label", `${image.name}: ${shownOf(image).length} detections`);
    setStatus(`${image.name} · ${image.size.join(" × ")} · ${shownOf(image).length} of ${found.length} shown · `
         + `${Math.round(image.milliseconds)} ms${foreign}`);
  }
}

function fillClasses() {
  const counts = new Map();
  for (const one of aboveThreshold(state.current)) {
    const known = counts.get(one.class_id) || {name: one.class_name, count: 0};
    known.count += 1;
    counts.set(one.class_id, known);
  }
  const focused = document.activeElement?.dataset?.classId;
  $("classes").replaceChildren(...[...counts].sort((a, b) => b[1].count - a[1].count || a[0] - b[0]).map(([id, result]) => {
    const button = document.createElement("button"), name = document.createElement("span"), count = document.createElement("small");
    button.type = "button";
    button.dataset.classId = id;
    button.setAttribute("aria-pressed", String(!state.hidden.has(id)));
    button.title = "Show or hide the detections of this class";
    name.textContent = result.name;
    count.textContent = result.count;
    button.append(swatch(id), name, count);
    button.addEventListener("click", () => {
      if (!state.hidden.delete(id)) state.hidden.add(id);
      refreshAll();
    });
    return button;
  }));
  if (focused) $("classes").querySelector(`[data-class-id="${focused}"]`)?.focus();
}

function swatch(id) {
  const box = document.createElement("i");
  box.className = "swatch";
  box.style.backgroundColor = colorOf(id);
  return box;
}

function fillTable() {
  const order = (a, b) => (typeof a[state.key] === "string" ? a[state.key].localeCompare(b[state.key]) : a[state.key] - b[state.key]);
  const shown = shownOf(state.current).sort((a, b) => (state.ascending ? order(a, b) : order(b, a)) || b.score - a.score);
  $("rows").replaceChildren(...shown.map((one) => {
    const row = document.createElement("tr"), name = document.createElement("td");
    name.append(swatch(one.class_id), one.class_name);
    name.title = one.class_name;
    row.append(name, ...[one.score.toFixed(3), ...[one.x, one.y, one.width, one.height].map(Math.round)].map((value) => {
      const cell = document.createElement("td");
      cell.textContent = value;
      return cell;
    }));
    row.tabIndex = 0;
    for (const event of ["mouseenter", "focus"]) row.addEventListener(event, () => mark(one));
    for (const event of ["mouseleave", "blur"]) row.addEventListener(event, () => mark(null));
    return row;
  }));
  $("nothing").hidden = shown.length > 0;
  $("nothing").textContent = state.current?.found ? "No detections above the score threshold." : "No detections yet.";
}

function sortBy(key) {
  state.ascending = key === state.key ? !state.ascending : key === "class_name";
  state.key = key;
  for (const button of document.querySelectorAll("thead button")) {
    if (button.dataset.key !== key) button.parentElement.removeAttribute("aria-sort");
    else button.parentElement.setAttribute("aria-sort", state.ascending ? "ascending" : "descending");
  }
  fillTable();
}

function mark(one) {
  state.marked = one;
  if (state.current) drawCurrent();
}

function refreshAll() {
  $("threshold").textContent = Number($("score").value).toFixed(2);
  refresh();
  state.images.forEach(drawThumbnail);
}

// Drawing

function colorOf(id) {
  return state.colors.get(id) || "#1f6fb4";
}

function channels(color) {
  return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
}

function draw(canvas, image, zoom = 1) {
  const [width, height] = image.size || [image.bitmap?.width || 640, image.bitmap?.height || 480];
  canvas.width = zoom * width;
  canvas.height = zoom * height;
  const context = canvas.getContext("2d");
  context.scale(zoom, zoom);
  if (image.bitmap) context.drawImage(image.bitmap, 0, 0, width, height);
  else {
    context.fillStyle = "#8793a0";
    context.fillRect(0, 0, width, height);
  }
  const shown = shownOf(image).sort((a, b) => a.score - b.score); // the highest scores are drawn last
  tint(context, shown.filter((one) => one.mask));
  const line = Math.max(1, Math.min(width, height) / 240) + 1 / zoom;
  for (const one of shown) if (one !== state.marked) outline(context, one, line);
  if (shown.includes(state.marked)) outline(context, state.marked, 2 * line);
  const seen = canvas.getBoundingClientRect(), shrunk = Math.min(seen.width / width, seen.height / height); // 0 for a canvas outside the page
  label(context, shown, {width, height, line, least: shrunk ? LETTERS / shrunk : 9});
}

function drawCurrent() { // small images are drawn enlarged, for sharp lines and text; masks are tinted in the image's own
  const image = state.current, side = Math.max(...(image.size || [1000]));
  draw($("image"), image, image.found?.some((one) => one.mask) ? 1 : Math.min(4, Math.max(1, Math.round(1200 / side))));
}

function outline(context, one, line) {
  const rim = line / 3;
  context.lineWidth = line + 2 * rim;
  context.strokeStyle = "#000a";
  context.strokeRect(one.x, one.y, one.width, one.height);
  context.lineWidth = line;
  context.strokeStyle = colorOf(one.class_id);
  context.strokeRect(one.x, one.y, one.width, one.height);
}

function label(context, shown, {width, height, line, least}) {
  const size = Math.max(least, Math.min(width, height) / 32), pad = size / 4;
  if (5 * size > height) return;
  context.font = `600 ${size}px system-ui, "DejaVu Sans", sans-serif`;
  context.textBaseline = "middle";
  const taken = [];
  for (const one of [...shown].reverse()) { // the highest score is placed first
    const text = `${one.class_name} ${Math.round(100 * one.score)}%`, wide = context.measureText(text).width + 2 * pad;
    const high = size + 2 * pad, left = one.x - line / 2, right = one.x + one.width + line / 2 - wide;
    const corners = [[left, one.y - high], [left, one.y], [left, one.y + one.height], [left, one.y + one.height - high],
                     [right, one.y - high], [right, one.y + one.height]];
    const boxes = corners.map(([x, y]) => [Math.min(Math.max(x, 0), Math.max(width - wide, 0)),
                                           Math.min(Math.max(y, 0), height - high), wide, high]);
    const place = boxes.find((box) => !taken.some((other) => overlap(box, other))) || boxes[0];
    taken.push(place);
    context.fillStyle = colorOf(one.class_id);
    context.fillRect(...place);
    const [red, green, blue] = channels(colorOf(one.class_id));
    context.fillStyle = 0.299 * red + 0.587 * green + 0.114 * blue > 130 ? "#000" : "#fff";
    context.fillText(text, place[0] + pad, place[1] + high / 2);
  }
}

function overlap([x, y, width, height], [otherX, otherY, otherWidth, otherHeight]) {
  return x < otherX + otherWidth && otherX < x + width && y < otherY + otherHeight && otherY < y + height;
}

function tint(context, masked) {
  if (!masked.length) return;
  const {width, height} = context.canvas, image = context.getImageData(0, 0, width, height), pixels = image.data;
  for (const one of masked) {
    const color = channels(colorOf(one.class_id));
    let place = 0;
    runLengths(one.mask.counts).forEach((count, number) => {
      for (const end = place + count; place < end; place += 1) { // column by column
        if (number % 2 === 0) { place = end; break; }
        const at = 4 * ((place % height) * width + Math.floor(place / height));
        for (let channel = 0; channel < 3; channel += 1) pixels[at + channel] += 0.45 * (color[channel] - pixels[at + channel]);
      }
    });
  }
  context.putImageData(image, 0, 0);
}

function runLengths(text) { // COCO's compressed RLE: five bits per character; from the fourth on, differences to the number two before
  const counts = [];
  for (let at = 0; at < text.length;) {
    let value = 0, shift = 0, bits;
    do {
      bits = text.charCodeAt(at) - 48;
      value |= (bits & 31) << shift;
      at += 1;
      shift += 5;
    } while (bits & 32);
    if (bits & 16 && shift < 32) value |= -1 << shift;
    counts.push(counts.length > 2 ? value + counts[counts.length - 2] : value);
  }
  return counts;
}

// Downloads

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function stem(image) {
  return image.name.replace(/\.[^.]*$/, "") || "image";
}

function saveJson() {
  const image = state.current, [width, height] = image.size;
  const detections = shownOf(image).map(({box, score, class_id, class_name, mask}) => ({box, score, class_id, class_name, ...(mask && {mask})}));
  const content = {image: image.name, width, height, min_score: Number($("score").value), detections};
  save(new Blob([JSON.stringify(content, null, 1)], {type: "application/json"}), `${stem(image)}.json`);
}

function saveImage() {
  const image = state.current, canvas = document.createElement("canvas");
  draw(canvas, image);
  canvas.toBlob((blob) => save(blob, `${stem(image)}-detections.png`), "image/png");
}

// Webcam

async function startCamera() {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({video: {facingMode: "environment"}});
  } catch (error) {
    setStatus(navigator.mediaDevices ? `The webcam is not available (${error.message}).`
      : "The webcam requires HTTPS or localhost.", true);
    return;
  }
  const video = document.createElement("video");
  video.srcObject = stream;
  video.muted = video.playsInline = true;
  await video.play();
  const camera = {stream, image: newImage("webcam")};
  state.camera = camera;
  $("webcam").setAttribute("aria-pressed", "true");
  while (state.camera === camera) {
    const frame = frameOf(video), result = {found: null, error: ""};
    camera.image.bitmap ??= frame;
    if (state.current !== camera.image) show(camera.image);
    try {
      const blob = await new Promise((done) => frame.toBlob(done, "image/jpeg", 0.9)), reply = await detect(blob);
      Object.assign(result, {found: prepared(reply.images[0].detections), milliseconds: reply.time_ms});
    } catch (error) {
      result.error = error.message;
      await new Promise((done) => setTimeout(done, 1000));
    }
    if (state.camera !== camera) return;
    Object.assign(camera.image, result, {bitmap: frame, size: [frame.width, frame.height]});
    refresh();
  }
}

function frameOf(video) {
  const scale = Math.min(1, WEBCAM_SIDE / Math.max(video.videoWidth, video.videoHeight)), frame = document.createElement("canvas");
  frame.width = Math.round(scale * video.videoWidth);
  frame.height = Math.round(scale * video.videoHeight);
  frame.getContext("2d").drawImage(video, 0, 0, frame.width, frame.height);
  return frame;
}

function stopCamera() {
  for (const track of state.camera?.stream.getTracks() || []) track.stop();
  state.camera = null;
  $("webcam").setAttribute("aria-pressed", "false");
}

// User input

$("choose").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", () => { add($("files").files); $("files").value = ""; });
$("webcam").addEventListener("click", () => (state.camera ? stopCamera() : startCamera()));
$("clear").addEventListener("click", clear);
$("json").addEventListener("click", saveJson);
$("png").addEventListener("click", saveImage);
$("score").addEventListener("input", refreshAll);
for (const button of document.querySelectorAll("thead button")) button.addEventListener("click", () => sortBy(button.dataset.key));
document.addEventListener("paste", (event) => { if (event.clipboardData.files.length) add(event.clipboardData.files); });
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input") || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key === "ArrowLeft") step(-1);
  if (event.key === "ArrowRight") step(1);
});
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("stage").classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind === "drop") add(event.dataTransfer.files);
  });
}
start().then(refreshAll, (error) => setStatus(error.message, true));
