// Draws the timeline on a canvas, to zoom and pan. Names become text only.
(async () => {
  "use strict";
  const root = document.getElementById("timeline-view");
  if (!root || !window.DecompressionStream) return; // an old browser keeps the picture
  const packed = Uint8Array.from(atob(document.getElementById("timeline-data").textContent), (letter) => letter.charCodeAt(0));
  const data = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  const canvas = root.querySelector("canvas"), tip = root.querySelector(".tip"), details = root.querySelector("output");
  const controls = root.querySelector(".controls"), pen = canvas.getContext("2d");
  const HEIGHT = { head: 20, entries: 12, counters: 22, modules: 16, budget: 16, gaps: 11, ranges: 14, calls: 11, operations: 20 };
  const LEAST_NS = 200, OVERVIEW = 14;

  // Columns are delta-coded: see Timeline in report.json.
  const sums = (deltas) => { let at = 0; return Float64Array.from(deltas, (delta) => (at += delta)); };
  function counterLane(rank, { name, percent }) {
    const size = percent.length, length = rank.length_ns / size;
    return { kind: "counters", name, percent, rank: rank.rank, size, busy: {}, path: new Set(), count: [], text: [], category: [], module: [],
      start: percent.map((_, part) => rank.begin_ns + part * length), length_ns: Array(size).fill(length), paint: Array(size).fill("#0f766e") };
  }
  const ranks = data.ranks.map((rank) => ({ ...rank, lanes: rank.counters.map((counter) => counterLane(rank, counter)).concat(rank.lanes.map((lane) => {
    const start = sums(lane.start_ns), path = new Set(sums(lane.on_path)), busy = {};
    let joined = 0;
    lane.count.forEach((count, item) => { if (count > 1) busy[item] = lane.busy_ns[joined++]; });
    const paint = lane.text.map((place, item) => lane.kind === "entries" ? "#c4b5fd" : lane.kind === "calls" ? (/Synchronize/.test(data.texts[place]) ? "#4b5563" : "#94a3b8")
      : lane.category.length ? data.colours[data.texts[lane.category[item]]] : "");
    return { ...lane, rank: rank.rank, start, path, busy, paint, size: start.length };
  })) }));
  const whole = [Math.min(...ranks.map((rank) => rank.begin_ns)), Math.max(...ranks.map((rank) => rank.begin_ns + rank.length_ns))];
  const detailed = ranks.filter((rank) => rank.lanes.length > 1);
  const shown = new Set(detailed.filter((rank) => ["representative", "late"].includes(rank.role)));
  const kinds = new Set(Object.keys(HEIGHT));
  let frame = 0, view = [...whole], rows = [], picked = null, lit = null, sought = null, colours = {}, gutter = 92, wideness = 0;

  const format = (ns) => {
    const [value, unit] = Math.abs(ns) >= 1e6 ? [ns / 1e6, "ms"] : Math.abs(ns) >= 1e3 ? [ns / 1e3, "us"] : [ns, "ns"];
    return `${value.toFixed(unit === "ns" || value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
  };
  const text = (lane, column, item) => data.texts[lane[column][item]] || "";
  const bucket = (lane, item) => text(lane, "category", item);
  const title = (category) => data.titles[category] || category.replaceAll("_", " ");

  function readColours() {
    const style = getComputedStyle(root);
    for (const name of ["text", "muted", "line"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
    redraw();
  }

  function layOut() {
    rows = [];
    let top = OVERVIEW + 24;
    const add = (kind, label, lane, rank) => { rows.push({ kind, label, lane, rank, top, height: HEIGHT[kind] }); top += HEIGHT[kind] + 2; };
    for (const rank of detailed) {
      if (!shown.has(rank)) continue;
      if (ranks.length > 1) add("head", `rank ${rank.rank}${rank.role === "other" ? "" : `, ${rank.role}`}`, null, rank);
      let thread = "";
      for (const lane of rank.lanes) {
        if (!kinds.has(lane.kind)) continue;
        const label = lane.kind === "ranges" && lane.name === thread ? "" : data.lanes[lane.kind] ? `${data.lanes[lane.kind]} ${lane.name.replace(/^thread \d+ (?=.)/, "")}` : lane.name;
        if (lane.kind === "ranges") thread = lane.name;
        add(lane.kind, label, lane, rank);
      }
      top += 6;
    }
    const others = ranks.filter((rank) => !detailed.includes(rank));
    if (others.length) add("head", "other ranks", null, null);
    for (const rank of others) add("gaps", `rank ${rank.rank}`, rank.lanes[0], rank);
    canvas.style.height = `${top + 4}px`;
    redraw();
  }

  const full = () => wideness, width = () => wideness - gutter, span = () => view[1] - view[0];
  const xOf = (ns) => gutter + (ns - view[0]) / span() * width();
  const xOfWhole = (ns) => gutter + (ns - whole[0]) / (whole[1] - whole[0]) * width();
  const nsAt = (x) => view[0] + (x - gutter) / width() * span();

  function firstVisible(lane) {
    let low = 0, high = lane.size;
    while (low < high) { const middle = (low + high) >> 1; if (lane.start[middle] < view[0]) low = middle + 1; else high = middle; }
    return Math.max(0, low - 1);
  }

  const matches = (lane, item) => sought.has(lane.text[item]) || sought.has(lane.category[item]) || sought.has(lane.module[item]);

  // What is narrower than a pixel is summed up in it: the denser, the darker.
  function drawLane({ lane, top, height }) {
    const right = full();
    let dot = null;
    const fill = (left, wide, colour, alpha, tall, onPath) => {
      pen.globalAlpha = alpha;
      pen.fillStyle = colour;
      pen.fillRect(left, top + height - tall, wide, tall);
      if (lit !== null && onPath) { pen.globalAlpha = 1; pen.fillStyle = colours.text; pen.fillRect(left, top + height - 3, wide, 3); }
    };
    const flush = () => {
      if (dot) fill(dot.at, 1, dot.colour, dot.alpha * Math.max(0.3, Math.min(1, dot.wide)), height, dot.onPath);
      dot = null;
    };
    for (let item = firstVisible(lane); item < lane.size && lane.start[item] < view[1]; item++) {
      const left = Math.max(gutter, xOf(lane.start[item]));
      const wide = Math.min(right, xOf(lane.start[item] + lane.length_ns[item])) - left;
      if (left + wide < gutter) continue;
      const colour = lane.paint[item] || colours.line, onPath = lane.path.has(item);
      const alpha = (lit === lane.rank && lane.kind === "operations" && !onPath) || (sought && !matches(lane, item)) ? 0.15 : 1;
      const share = lane.busy[item] ? lane.busy[item] / lane.length_ns[item] : 1;
      if (wide < 1) {
        if (dot && dot.at !== Math.floor(left)) flush();
        dot ||= { at: Math.floor(left), wide: 0, longest: -1, alpha, onPath };
        dot.wide += wide * share;
        dot.alpha = Math.max(dot.alpha, alpha);
        dot.onPath ||= onPath;
        if (wide > dot.longest) { dot.longest = wide; dot.colour = colour; }
        continue;
      }
      flush();
      const size = wide - (wide > 4 ? 0.5 : 0), tall = lane.percent ? height * lane.percent[item] / 100 : height;
      const waits = lane.wait_ns?.[item] ? Math.min(size, Math.max(0, xOf(lane.start[item] + lane.wait_ns[item]) - left)) : 0;
      if (waits) fill(left, waits, colour, alpha * 0.3, tall, onPath);
      fill(left + waits, size - waits, colour, alpha * Math.max(0.35, Math.min(1, share)), tall, onPath);
      pen.globalAlpha = alpha;
      if (wide > 34 && height > 11) {
        const label = lane.count[item] > 1 ? `${lane.count[item]} in a row` : text(lane, "text", item) || title(bucket(lane, item));
        write(label, colour === colours.line || waits > size / 2 ? colours.text : data.inks[colour] || "#000", left + 4, top, wide - 6, height);
      }
    }
    flush();
    pen.globalAlpha = 1;
    if (picked && picked.lane === lane) {
      const left = Math.max(gutter, xOf(lane.start[picked.item])), end = xOf(lane.start[picked.item] + lane.length_ns[picked.item]);
      pen.strokeStyle = colours.text;
      pen.lineWidth = 2;
      if (end >= gutter && left < right) pen.strokeRect(left, top, Math.max(3, Math.min(right, end) - left), height);
    }
  }

  function drawOverview() {
    const lane = ranks[0].lanes.find((each) => each.kind === "budget"), kept = view, marked = [picked, sought, lit];
    const [from, to] = [xOfWhole(kept[0]), xOfWhole(kept[1])];
    [view, picked, sought, lit] = [whole, null, null, null];
    if (lane) drawLane({ lane, top: 0, height: OVERVIEW - 2 });
    view = kept;
    [picked, sought, lit] = marked;
    pen.fillStyle = colours.text;
    pen.globalAlpha = 0.35;
    pen.fillRect(gutter, 0, from - gutter, OVERVIEW - 2);
    pen.fillRect(to, 0, full() - to, OVERVIEW - 2);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.text;
    pen.lineWidth = 1;
    pen.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), OVERVIEW - 3);
  }

  function write(words, colour, left, top, wide, height) {
    pen.save();
    pen.beginPath();
    pen.rect(left, top, wide, height);
    pen.clip();
    pen.fillStyle = colour;
    pen.fillText(words, left, top + height / 2 + 0.5);
    pen.restore();
  }

  function drawAxis() {
    const rough = span() / Math.max(2, width() / 110), unit = 10 ** Math.floor(Math.log10(rough));
    const tick = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
    pen.fillStyle = colours.muted;
    for (let at = Math.ceil(view[0] / tick) * tick; at <= view[1]; at += tick) {
      const x = Math.round(xOf(at));
      pen.globalAlpha = 0.25; pen.fillRect(x, OVERVIEW + 18, 1, canvas.clientHeight); pen.globalAlpha = 1;
      const digits = Math.max(0, -Math.floor(Math.log10(tick / 1e6)));
      if (x < full() - 40) pen.fillText(`${(at / 1e6).toFixed(Math.min(6, digits))} ms`, x + 3, OVERVIEW + 10);
    }
  }

  function draw() {
    frame = 0;
    wideness = canvas.clientWidth; // read once: it is asked for each item
    gutter = full() < 560 ? 72 : 150;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(full() * scale); // this clears it
    canvas.height = Math.round(canvas.clientHeight * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawOverview();
    drawAxis();
    for (const row of rows) {
      if (row.lane) drawLane(row);
      write(row.label, row.kind === "head" ? colours.text : colours.muted, 0, row.top, row.kind === "head" ? full() : gutter - 4, row.height);
    }
  }

  const redraw = () => { frame ||= requestAnimationFrame(draw); };

  function setView(start, end) {
    const size = Math.min(whole[1] - whole[0], Math.max(LEAST_NS, end - start));
    const begin = Math.min(Math.max(whole[0], start), whole[1] - size);
    view = [begin, begin + size];
    redraw();
  }
  const zoom = (factor, at = (view[0] + view[1]) / 2) => setView(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  const pan = (share) => setView(view[0] + share * span(), view[1] + share * span());

  function find(x, y) {
    const row = rows.find((each) => each.lane && y >= each.top - 1 && y <= each.top + each.height + 1);
    if (!row || x < gutter) return null;
    const at = nsAt(x), reach = 3 * span() / width(), lane = row.lane;
    let best = null, least = reach;
    for (let item = firstVisible(lane); item < lane.size && lane.start[item] <= at + reach; item++) {
      const far = Math.max(lane.start[item] - at, at - lane.start[item] - lane.length_ns[item], 0);
      if (far <= least) { best = item; least = far; }
    }
    return best === null ? null : { row, lane, item: best };
  }

  function gapBefore(rank, at) {
    const lane = rank.lanes.find((each) => each.kind === "gaps");
    if (!lane) return "";
    const item = lane.start.findLastIndex((start) => start < at);
    if (item < 0 || Math.abs(lane.start[item] + lane.length_ns[item] - at) > 1000) return "";
    const detail = text(lane, "text", item);
    return `Before it no compute for ${format(lane.length_ns[item])}: ${title(bucket(lane, item))}${detail ? ` (${detail})` : ""}`;
  }

  function describe({ row, lane, item }) {
    const category = bucket(lane, item), name = text(lane, "text", item), count = lane.count[item] || 1;
    const start = lane.start[item], clock = (row.rank.clock_ns + start) / 1e9;
    const lines = [];
    if (lane.percent) lines.push(`${lane.name}: ${lane.percent[item] ?? "?"}% of the peak`);
    else if (count > 1) lines.push(`${count} in a row, ${format(lane.busy[item])} together${category ? `, most in ${title(category)}` : ""}; longest: ${name || title(category)}`);
    else lines.push(...new Set([name || title(category), title(category)].filter(Boolean)));
    lines.push(`${format(lane.length_ns[item])} from ${format(start)}${ranks.length > 1 ? `, rank ${row.rank.rank}` : ""}, ${clock.toFixed(6)} s in Nsight Systems`);
    if (text(lane, "module", item)) lines.push(text(lane, "module", item));
    if (lane.kind === "operations" && count === 1) {
      lines.push(lane.launch_ns[item] >= 0 ? `Started ${format(lane.launch_ns[item])} after its launch call began` : "Launch not recorded");
      const gap = gapBefore(row.rank, start);
      if (gap) lines.push(gap);
    }
    if (lane.wait_ns?.[item]) lines.push(`Waits ${format(lane.wait_ns[item])} for other ranks, then transfers ${format(lane.length_ns[item] - lane.wait_ns[item])}`);
    if (lane.path.has(item)) lines.push("On the critical path");
    return lines;
  }

  function pick(found) {
    picked = found;
    details.textContent = found ? describe(found).join(". ") : "";
    redraw();
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  function showTip(event) {
    const [x, y] = place(event), found = find(x, y);
    tip.hidden = !found;
    if (!found) return;
    tip.replaceChildren(...describe(found).map((textContent) => make("div", { textContent })));
    tip.style.left = `${Math.max(0, Math.min(x + 14, full() - tip.offsetWidth))}px`;
    tip.style.top = `${canvas.offsetTop + found.row.top + found.row.height + 6}px`;
  }

  const on = (name, handle, options) => canvas.addEventListener(name, handle, options), pointers = new Map();
  let moved = 0, overview = false;
  const goTo = (x) => { const at = whole[0] + (x - gutter) / width() * (whole[1] - whole[0]); setView(at - span() / 2, at + span() / 2); };
  on("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    moved = 0;
    overview = place(event)[1] < OVERVIEW;
    if (overview) goTo(place(event)[0]);
    canvas.setPointerCapture(event.pointerId);
  });
  on("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) { showTip(event); return; }
    const other = [...pointers.values()].find((each) => each.pointerId !== event.pointerId);
    moved += Math.abs(event.clientX - before.clientX);
    if (overview) goTo(place(event)[0]);
    else if (other) zoom(Math.abs(before.clientX - other.clientX) / Math.max(8, Math.abs(event.clientX - other.clientX)), nsAt((place(event)[0] + place(other)[0]) / 2));
    else pan((before.clientX - event.clientX) / width());
    pointers.set(event.pointerId, event);
    hide();
  });
  const release = (event) => pointers.delete(event.pointerId);
  on("pointerup", (event) => {
    release(event);
    if (moved < 4 && !overview) pick(find(...place(event)));
  });
  on("pointercancel", release);
  const hide = () => { tip.hidden = true; };
  on("pointerleave", hide);
  on("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (!sideways && !event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    event.preventDefault();
    if (sideways) pan((event.deltaX || event.deltaY) / width());
    else zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 300), nsAt(place(event)[0]));
  }, { passive: false });

  function go(lanesOn, itemsOn) {
    const lanes = rows.filter((row) => row.lane), stream = lanes.findIndex((row) => row.kind === "operations");
    const at = picked ? lanes.findIndex((row) => row.lane === picked.lane) : stream - lanesOn;
    const row = lanes[Math.min(lanes.length - 1, Math.max(0, at + lanesOn))], lane = row.lane;
    const item = Math.min(lane.size - 1, Math.max(0, picked && itemsOn ? picked.item + itemsOn : firstVisible(lane)));
    const start = lane.start[item], half = span() / 2;
    if (itemsOn && (start < view[0] || start > view[1])) setView(start - half, start + half);
    pick({ row, lane, item });
  }
  // The next or the previous item with the sought text, on any lane that is shown.
  function seek(forward) {
    const from = picked ? picked.lane.start[picked.item] : forward ? view[0] - 1 : view[1];
    let best = null, count = 0;
    for (const row of rows) for (let item = 0; row.lane && item < row.lane.size; item++) {
      if (!matches(row.lane, item)) continue;
      count++;
      const start = row.lane.start[item];
      if (forward ? start > from && !(best && best.lane.start[best.item] <= start) : start < from && !(best && best.lane.start[best.item] >= start)) best = { row, lane: row.lane, item };
    }
    if (best) {
      const start = best.lane.start[best.item], half = span() / 2;
      if (start < view[0] || start + best.lane.length_ns[best.item] > view[1]) setView(start - half, start + half);
      pick(best);
    }
    details.textContent = `${count} found. ${best ? describe(best).join(". ") : count ? `No ${forward ? "later" : "earlier"} one.` : ""}`;
  }
  const KEYS = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
    ArrowUp: () => go(-1, 0), ArrowDown: () => go(1, 0), n: () => go(0, 1), p: () => go(0, -1),
    Escape: () => { pick(null); hide(); setView(...whole); },
  };
  on("keydown", (event) => {
    if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  const make = (tag, values) => Object.assign(document.createElement(tag), values);
  function addBox(label, isOn, change) {
    const box = make("input", { type: "checkbox", checked: isOn }), line = make("label", {});
    line.append(box, ` ${label}`);
    box.addEventListener("change", () => { change(box.checked); layOut(); });
    controls.append(line);
    return box;
  }
  const addButton = (textContent, ariaLabel, onclick) => controls.append(make("button", { type: "button", textContent, ariaLabel, onclick }));
  const flip = (set, key) => (isOn) => set[isOn ? "add" : "delete"](key);
  addButton("+", "Zoom in", () => zoom(0.5));
  addButton("-", "Zoom out", () => zoom(2));
  addButton("Whole step", "Whole step", () => setView(...whole));
  const search = make("input", { type: "search", placeholder: "Find a kernel, a range ...", ariaLabel: "Find in the timeline" });
  search.addEventListener("input", () => {
    const words = search.value.trim().toLowerCase();
    const named = (name) => `${name} ${data.titles[name] || ""}`.toLowerCase().includes(words);
    sought = words ? new Set(data.texts.flatMap((name, place) => (name && named(name) ? [place] : []))) : null;
    pick(null);
    if (sought) seek(true);
  });
  search.addEventListener("keydown", (event) => { if (event.key === "Enter" && sought) { event.preventDefault(); seek(!event.shiftKey); } });
  controls.append(search);
  const boxes = new Map();
  if (detailed.length > 1) for (const rank of detailed) boxes.set(rank, addBox(`rank ${rank.rank}`, shown.has(rank), flip(shown, rank)));
  for (const [kind, label] of [...(ranks[0].lanes.some((lane) => lane.kind === "entries") ? [["entries", "Plan"]] : []), ["ranges", "NVTX"], ["calls", "CUDA calls"], ["gaps", "Gaps"], ...(ranks[0].counters.length ? [["counters", "Hardware"]] : [])]) addBox(label, true, flip(kinds, kind));
  if (ranks.some((rank) => rank.lanes.some((lane) => lane.path.size))) addBox("Critical path", false, (isOn) => { lit = isOn ? data.rank : null; });

  // Links: #t=<start>-<end>&rank=<rank>, in ns
  function follow() {
    const match = /^#t=(\d+)-(\d+)&rank=(\d+)$/.exec(decodeURIComponent(location.hash));
    if (!match) return;
    const [start, end, number] = match.slice(1).map(Number), rank = detailed.find((each) => each.rank === number);
    if (boxes.has(rank) && !boxes.get(rank).checked) boxes.get(rank).click();
    const margin = Math.max(LEAST_NS, (end - start) * 0.6);
    setView(start - margin, end + margin);
    for (let fold = root.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    root.scrollIntoView({ block: "nearest" });
    details.textContent = `${format(start)} to ${format(end)}`;
  }

  root.classList.add("live");
  readColours();
  layOut();
  new ResizeObserver(redraw).observe(canvas);
  window.addEventListener("hashchange", follow);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);
  follow();
})();
