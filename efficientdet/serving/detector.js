
"use strict";
const LEAST_SCORE = 0.05; // what is asked for; the slider hides what is below its own
const THUMBNAIL = 208;
const LETTERS = 13; // pixels of the screen that a label's letters have at least
const WEBCAM_SIDE = 960; // pixels of the longer side of a frame that is sent
const $ = (id) => document.getElementById(id);
const state = {pictures: [], current: null, colors: new Map(), hidden: new Set(), key: "score", ascending: false, marked: null,
               camera: null, waiting: [], asking: false, limits: null};

// What the server knows

async function askForModel() {
  const reply = await fetch("/v1/model");
  const about = await reply.json();
  $("model").textContent = `${about.model} · ${about.classes.length} ${about.classes.length === 1 ? "class" : "classes"}`;
  state.limits = about.limits;
  for (const one of about.classes) state.colors.set(one.id, one.color);
}

async function detect(blob) {
  if (state.limits && blob.size > state.limits.max_request_bytes - 4096) {
    throw new Error(`the picture has ${blob.size} bytes; at most ${state.limits.max_request_bytes} are taken`);
  }
  const form = new FormData();
  form.append("image", blob, "image");
  for (;;) {
    const reply = await fetch(`/v1/detect?min_score=${LEAST_SCORE}`, {method: "POST", body: form});
    const content = await reply.json();
    if (reply.ok) return content;
    if (reply.status !== 503) throw new Error(content.error);
    await new Promise((done) => setTimeout(done, 1000 * Number(reply.headers.get("retry-after") || 1)));
  }
}

function prepared(found) {
  return found.map((one) => {
    const [left, top, right, bottom] = one.box;
    return {...one, x: left, y: top, width: right - left, height: bottom - top};
  });
}

// Pictures that were given

function add(files) {
  stopCamera();
  const images = [...files].filter((file) => file.type.startsWith("image/") || /\.(bmp|gif|jpe?g|jp2|png|tiff?|webp)$/i.test(file.name));
  if (files.length && !images.length) tell(`${files[0].name || "That"} is no picture.`, true);
  for (const file of images) {
    const picture = newPicture(file.name || "pasted", file);
    picture.item = thumbnailOf(picture);
    state.pictures.push(picture);
    state.waiting.push(picture);
    if (!state.current || images.length === 1) show(picture);
  }
  $("clear").disabled = !state.pictures.length;
  askForAll();
}

async function askForAll() {
  if (state.asking) return;
  state.asking = true;
  while (state.waiting.length) await look(state.waiting.shift());
  state.asking = false;
}

function newPicture(name, blob) { // found, size: null until the server has answered; foreign: the browser cannot decode it
  return {name, blob, bitmap: null, foreign: false, found: null, size: null, error: "", milliseconds: 0};
}

async function load(picture) {
  if (picture.bitmap || picture.foreign) return;
  picture.bitmap = await createImageBitmap(picture.blob).catch(() => null);
  picture.foreign = !picture.bitmap;
}

async function look(picture) {
  await load(picture);
  drawThumbnail(picture);
  if (picture === state.current) refresh();
  try {
    const reply = await detect(picture.blob);
    const image = reply.images[0];
    picture.found = prepared(image.detections);
    picture.size = [image.width, image.height];
    picture.milliseconds = reply.time_ms;
  } catch (error) {
    picture.error = error.message;
  }
  drawThumbnail(picture);
  if (picture === state.current) refresh();
  else picture.bitmap = null; // hundreds of photographs would fill the memory
}

function thumbnailOf(picture) {
  const item = document.createElement("li"), button = document.createElement("button");
  button.type = "button";
  button.title = picture.name;
  button.setAttribute("aria-label", picture.name);
  button.append(document.createElement("canvas"));
  button.addEventListener("click", () => show(picture));
  item.append(button);
  $("thumbnails").append(item);
  return item;
}

function drawThumbnail(picture) {
  const button = picture.item.firstChild, canvas = button.querySelector("canvas");
  if (picture.bitmap) {
    const scale = THUMBNAIL / Math.max(picture.bitmap.width, picture.bitmap.height);
    canvas.width = Math.max(1, Math.round(picture.bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(picture.bitmap.height * scale));
    canvas.getContext("2d").drawImage(picture.bitmap, 0, 0, canvas.width, canvas.height);
  }
  button.querySelector(".count")?.remove();
  const count = document.createElement("span");
  count.className = picture.error ? "count bad" : "count";
  count.textContent = picture.error ? "!" : String(shownOf(picture).length);
  if (picture.error || picture.found) button.append(count);
}

async function show(picture) {
  if (picture !== state.camera?.picture) stopCamera();
  if (state.current && state.current !== picture) state.current.bitmap = null;
  state.current = picture;
  state.marked = null;
  await load(picture);
  if (picture === state.current) refresh();
}

function step(by) {
  const place = state.pictures.indexOf(state.current) + by;
  if (!state.pictures[place]) return;
  show(state.pictures[place]);
  state.current.item.scrollIntoView({block: "nearest", inline: "nearest"});
}

function clear() {
  stopCamera();
  Object.assign(state, {pictures: [], waiting: [], current: null, marked: null});
  state.hidden.clear();
  $("thumbnails").replaceChildren();
  $("clear").disabled = true;
  refresh();
}

// What is shown of the current one

function aboveThreshold(picture) {
  return (picture?.found || []).filter((one) => one.score >= Number($("score").value));
}

function shownOf(picture) {
  return aboveThreshold(picture).filter((one) => !state.hidden.has(one.class_id));
}

function tell(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

function refresh() {
  const picture = state.current;
  for (const other of state.pictures) other.item.firstChild.setAttribute("aria-current", String(other === picture));
  $("stage").classList.toggle("empty", !picture);
  $("stage").classList.toggle("busy", Boolean(picture && !picture.found && !picture.error));
  $("invitation").hidden = Boolean(picture);
  $("picture").hidden = !picture;
  const found = picture?.found;
  $("json").disabled = $("png").disabled = !found;
  if (picture) drawCurrent();
  fillClasses();
  fillTable();
  if (!picture) tell("");
  else if (picture.error) tell(`${picture.name}: ${picture.error}`, true);
  else if (!found) tell(`${picture.name}: looking …`);
  else {
    const foreign = picture.foreign ? " · this browser cannot show its format" : "";
    tell(`${picture.name} · ${picture.size.join(" × ")} · ${shownOf(picture).length} of ${found.length} shown · `
         + `${Math.round(picture.milliseconds)} ms${foreign}`);
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
  $("classes").replaceChildren(...[...counts].sort((a, b) => b[1].count - a[1].count || a[0] - b[0]).map(([id, told]) => {
    const button = document.createElement("button"), name = document.createElement("span"), count = document.createElement("small");
    button.type = "button";
    button.dataset.classId = id;
    button.setAttribute("aria-pressed", String(!state.hidden.has(id)));
    button.title = "Show or hide this class";
    name.textContent = told.name;
    count.textContent = told.count;
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
  $("nothing").textContent = state.current?.found ? "Nothing at this score." : "Nothing to show yet.";
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
  state.pictures.forEach(drawThumbnail);
}

// Drawing

function colorOf(id) {
  return state.colors.get(id) || "#1f6fb4";
}

function channels(color) {
  return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
}

function draw(canvas, picture, zoom = 1) {
  const [width, height] = picture.size || [picture.bitmap?.width || 640, picture.bitmap?.height || 480];
  canvas.width = zoom * width;
  canvas.height = zoom * height;
  const context = canvas.getContext("2d");
  context.scale(zoom, zoom);
  if (picture.bitmap) context.drawImage(picture.bitmap, 0, 0, width, height);
  else {
    context.fillStyle = "#8793a0";
    context.fillRect(0, 0, width, height);
  }
  const shown = shownOf(picture).sort((a, b) => a.score - b.score); // the best are drawn last
  tint(context, shown.filter((one) => one.mask));
  const line = Math.max(1, Math.min(width, height) / 240) + 1 / zoom;
  for (const one of shown) if (one !== state.marked) outline(context, one, line);
  if (shown.includes(state.marked)) outline(context, state.marked, 2 * line);
  const seen = canvas.getBoundingClientRect(), shrunk = Math.min(seen.width / width, seen.height / height); // 0 off the page
  label(context, shown, {width, height, line, least: shrunk ? LETTERS / shrunk : 9});
}

function drawCurrent() { // a small picture in finer pixels, for sharp lines and letters; masks are tinted in the picture's own
  const picture = state.current, side = Math.max(...(picture.size || [1000]));
  draw($("picture"), picture, picture.found?.some((one) => one.mask) ? 1 : Math.min(4, Math.max(1, Math.round(1200 / side))));
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
  for (const one of [...shown].reverse()) { // the best chooses its place first
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

function runLengths(text) { // COCO's: numbers of five bits a letter, from the fourth on as differences to the last but one
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

function stem(picture) {
  return picture.name.replace(/\.[^.]*$/, "") || "picture";
}

function saveJson() {
  const picture = state.current, [width, height] = picture.size;
  const detections = shownOf(picture).map(({box, score, class_id, class_name, mask}) => ({box, score, class_id, class_name, ...(mask && {mask})}));
  const content = {image: picture.name, width, height, min_score: Number($("score").value), detections};
  save(new Blob([JSON.stringify(content, null, 1)], {type: "application/json"}), `${stem(picture)}.json`);
}

function savePicture() {
  const picture = state.current, canvas = document.createElement("canvas");
  draw(canvas, picture);
  canvas.toBlob((blob) => save(blob, `${stem(picture)}-detections.png`), "image/png");
}

// Webcam

async function startCamera() {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({video: {facingMode: "environment"}});
  } catch (error) {
    tell(navigator.mediaDevices ? `No picture from a webcam (${error.message}).`
      : "A webcam needs https, or this page on localhost.", true);
    return;
  }
  const video = document.createElement("video");
  video.srcObject = stream;
  video.muted = video.playsInline = true;
  await video.play();
  const camera = {stream, picture: newPicture("webcam")};
  state.camera = camera;
  $("webcam").setAttribute("aria-pressed", "true");
  while (state.camera === camera) {
    const frame = frameOf(video), told = {found: null, error: ""};
    camera.picture.bitmap ??= frame;
    if (state.current !== camera.picture) show(camera.picture);
    try {
      const blob = await new Promise((done) => frame.toBlob(done, "image/jpeg", 0.9)), reply = await detect(blob);
      Object.assign(told, {found: prepared(reply.images[0].detections), milliseconds: reply.time_ms});
    } catch (error) {
      told.error = error.message;
      await new Promise((done) => setTimeout(done, 1000));
    }
    if (state.camera !== camera) return;
    Object.assign(camera.picture, told, {bitmap: frame, size: [frame.width, frame.height]});
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

// What people do

$("choose").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", () => { add($("files").files); $("files").value = ""; });
$("webcam").addEventListener("click", () => (state.camera ? stopCamera() : startCamera()));
$("clear").addEventListener("click", clear);
$("json").addEventListener("click", saveJson);
$("png").addEventListener("click", savePicture);
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
askForModel().then(refreshAll, () => tell("The server does not answer.", true));
