// SPDX-License-Identifier: Apache-2.0
// The arena and the streams over one axis of time.
// ---- what a timeline says
const IDLE = new Set(['wait', 'drain']);  // actions in which compute does nothing
const KINDS = new Map([
  ['compute', 'computing'], ['gather', 'gathering'], ['refresh', 'gathering'],
  ['reduce', 'reducing'], ['stage', 'reducing'], ['accumulate', 'reducing'],
  ['update', 'updating'], ['publish', 'updating'],
]);
const kindOf = span => KINDS.get(span.action) ?? 'other';
function readTimeline(plan) {
  const given = plan.timeline;
  if (!given) return null;
  const spans = list(given.spans), held = list(given.held);
  const end = most(spans, one => one.end);
  const seconds = Math.max(given.seconds ?? 0, end, most(held, one => one.end));
  if (!(seconds > 0)) return null;
  const streams = list(given.streams);
  const compute = Math.max(0, streams.indexOf('compute'));
  const isWork = one => one.stream === compute && !IDLE.has(one.action) && one.end > one.begin;
  const earlier = (a, b) => a.begin - b.begin;
  const busy = spans.filter(isWork).sort(earlier);
  const gaps = [], least = seconds * 1e-6;
  let done = 0;
  for (const one of busy) {
    if (one.begin - done > least) gaps.push({begin: done, end: one.begin});
    done = Math.max(done, one.end);
  }
  if (busy.length && seconds - done > least) gaps.push({begin: done, end: seconds});
  // A section may come several times, once per micro-batch: each turn of compute is one.
  const turns = [];
  for (const one of busy.length ? busy : [...spans].sort(earlier)) {
    if (turns.at(-1)?.section !== one.section) turns.push({section: one.section, begin: one.begin});
  }
  if (turns.length) turns[0].begin = 0;
  turns.forEach((turn, i) => {
    turn.end = turns[i + 1]?.begin ?? seconds;
    turn.name = nameOf(list(given.sections)[turn.section] ?? 'step');
  });
  const waiting = sum(gaps, one => one.end - one.begin);
  return {spans, held, seconds, streams, compute, gaps, turns, waiting};
}
/** What compute waited for: what ended last before it went on. */
function causeOf(gap, time) {
  const latest = gap.end + time.seconds * 1e-9;
  let cause = null;
  for (const one of time.spans) {
    if (one.stream === time.compute || one.end <= gap.begin || one.end > latest) continue;
    if (!cause || one.end > cause.end) cause = one;
  }
  if (!cause) return 'for what is not in this plan';
  return `until ${cause.action} of ${nameOf(cause.unit)} is done`;
}

// ---- one view, shared by both charts
const WIDTH = 1e5;  // of the whole step inside a plot; positions there are single floats
const LEFT = 66, RIGHT = 8, BELOW = 22;
const view = {from: 0, to: 1, charts: [], asked: false};
function look(from, to) {
  const width = Math.min(1, Math.max(to - from, 2e-4));
  view.from = Math.min(1 - width, Math.max(0, from));
  view.to = view.from + width;
  if (view.asked) return;
  view.asked = true;
  requestAnimationFrame(() => {
    view.asked = false;
    for (const one of view.charts) one();
  });
}
const zoom = (factor, at = (view.from + view.to) / 2) =>
  look(at - (at - view.from) * factor, at + (view.to - at) * factor);
function move(share) {
  const way = share * (view.to - view.from);
  look(view.from + way, view.to + way);
}

function ticks(least, largest, count) {
  const raw = (largest - least) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find(one => one * power >= raw) ?? 10);
  const found = [];
  for (let i = Math.ceil(least / step - 1e-9); i * step <= largest * (1 + 1e-9); ++i)
    found.push(i * step);
  return {step, found};
}
/** Labels of an axis: one unit, and as many places as tell neighbours apart. */
function tickTexts(kind, {step, found}) {
  const [unit, size] = unitFor(kind === 'count' ? 'thousands' : kind, Math.max(...found, step));
  const places = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  return found.map(at => at === 0 ? '0' : `${plain(at / size, places)}${unit && ' ' + unit}`);
}

/**
 * pieces: {begin, end, low, high, kind, unit, word, light, dress(node), tip()}, with heights from 0
 * (below) to 1. They are drawn once; a zoom changes only the plot's window on them.
 */
function timeChart(host, {name, height, above, time, pieces, behind, over}) {
  const box = {above, height: height - above - BELOW, width: 100};
  const svg = shape(host, 'svg', {
    height, role: 'img', 'aria-label': name, 'aria-describedby': `${host.id}-says`});
  const back = shape(svg, 'g', {});
  const plot = shape(svg, 'svg', {
    class: 'plot', x: LEFT, y: above, height: box.height, preserveAspectRatio: 'none'});
  const front = shape(svg, 'g', {});
  shape(svg, 'line', {class: 'cursor', y1: above, y2: height - BELOW, visibility: 'hidden'});
  const chosen = shape(svg, 'rect', {class: 'chosen', y: above, height: box.height, width: 0});
  const scale = WIDTH / time.seconds;
  for (const one of pieces) {
    one.node = shape(plot, 'rect', {
      class: one.kind, x: one.begin * scale, width: Math.max(0, one.end - one.begin) * scale,
      y: (1 - one.high) * 1000, height: (one.high - one.low) * 1000});
    one.node.piece = one;
    one.dress?.(one.node);
  }
  const show = () => {
    const width = Math.max(LEFT + RIGHT + 60, svg.clientWidth || 600);
    box.width = width - LEFT - RIGHT;
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    plot.setAttribute('width', box.width);
    const part = view.to - view.from;
    plot.setAttribute('viewBox', `${view.from * WIDTH} 0 ${part * WIDTH} 1000`);
    back.replaceChildren();
    front.replaceChildren();
    const place = at => LEFT + (at / time.seconds - view.from) / part * box.width;
    behind(back, box);
    drawTimes(back, box, time, place);
    over?.(front, box, place);
    drawWords(front, box, pieces, place);
  };
  view.charts.push(show);
  new ResizeObserver(show).observe(svg);
  listen(svg, box, chosen);
}
function drawTimes(back, box, time, place) {
  const {seconds} = time, bottom = box.above + box.height;
  const found = ticks(view.from * seconds, view.to * seconds, box.width / 95);
  const texts = tickTexts('seconds', found);
  found.found.forEach((at, i) => {
    const x = place(at), last = x > LEFT + box.width - 25;
    shape(back, 'line', {class: 'grid', x1: x, x2: x, y1: box.above, y2: bottom + 4});
    shape(back, 'text', {x: last ? LEFT + box.width : x, y: bottom + 16,
                         'text-anchor': last ? 'end' : 'middle'}, texts[i]);
  });
}
/** The names of the pieces that are wide enough for them. */
function drawWords(front, box, pieces, place) {
  let left = 400;
  for (const one of pieces) {
    const from = Math.max(LEFT, place(one.begin));
    const width = Math.min(LEFT + box.width, place(one.end)) - from;
    if (!one.word || width < one.word.length * 6.6 + 8) continue;
    if ((one.high - one.low) * box.height < 13) continue;
    if (--left < 0) break;
    shape(front, 'text', {
      class: one.light ? 'word light' : 'word', x: from + 4,
      y: box.above + (1 - (one.high + one.low) / 2) * box.height + 4}, one.word);
  }
}

const lit = {units: new Map(), nodes: []};
function point(piece, event) {
  const tip = by('tip');
  const nodes = piece ? lit.units.get(piece.unit) ?? [piece.node] : [];
  if (nodes !== lit.nodes) {
    for (const node of lit.nodes) node.classList.remove('lit');
    for (const node of nodes) node.classList.add('lit');
    lit.nodes = nodes;
  }
  tip.hidden = !piece;
  if (!piece) return;
  const [head, ...rest] = piece.tip();
  tip.replaceChildren(element('b', {}, head), ...rest.map(text => element('div', {}, text)));
  const {width, height} = tip.getBoundingClientRect();
  const {clientX: x, clientY: y} = event;
  const left = x + 14 + width < innerWidth ? x + 14 : x - 14 - width;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(innerHeight - height - 4, y + 14))}px`;
}
function listen(svg, box, chosen) {
  let from = null;
  const shareAt = event => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    return Math.min(1, Math.max(0, (x - LEFT) / box.width));
  };
  const timeAt = share => view.from + share * (view.to - view.from);
  svg.addEventListener('pointerdown', event => {
    if (event.button !== 0) return;
    from = shareAt(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener('pointermove', event => {
    const here = shareAt(event);
    for (const one of document.querySelectorAll('.cursor')) {
      one.setAttribute('x1', LEFT + here * box.width);
      one.setAttribute('x2', LEFT + here * box.width);
      one.setAttribute('visibility', 'visible');
    }
    chosen.setAttribute('x', LEFT + Math.min(here, from ?? here) * box.width);
    chosen.setAttribute('width', Math.abs(here - (from ?? here)) * box.width);
    point(from === null ? event.target.piece : null, event);
  });
  const end = event => {
    const start = from, here = shareAt(event);
    from = null;
    chosen.setAttribute('width', 0);
    if (start === null || event.type === 'pointercancel') return;
    if (Math.abs(here - start) * box.width < 5) return;  // a click
    look(timeAt(Math.min(start, here)), timeAt(Math.max(start, here)));
  };
  svg.addEventListener('pointerup', end);
  svg.addEventListener('pointercancel', end);
  svg.addEventListener('pointerleave', event => {
    for (const one of document.querySelectorAll('.cursor'))
      one.setAttribute('visibility', 'hidden');
    point(null, event);
  });
  svg.addEventListener('dblclick', () => look(0, 1));
  svg.addEventListener('wheel', event => {
    // The bare wheel goes on scrolling the page: the charts are too tall to be in its way.
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (!event.ctrlKey && !event.metaKey && !isSideways) return;
    event.preventDefault();
    if (isSideways) move((event.deltaX || event.deltaY) / box.width);
    else zoom(Math.exp(Math.max(-50, Math.min(50, event.deltaY)) * 0.006), timeAt(shareAt(event)));
  }, {passive: false});
}

// ---- the two charts
/** Both ends with as many places as their distance needs. */
function between({begin, end}) {
  const step = 10 ** Math.floor(Math.log10((end - begin) / 10 || end / 1000 || 1));
  const [from, to] = tickTexts('seconds', {step, found: [begin, end]});
  return `${from} to ${to}, ${said('seconds', end - begin)} long`;
}
function key(host, text, draw) {
  const sample = element('span');
  draw(shape(sample, 'svg', {viewBox: '0 0 26 8', 'aria-hidden': true}));
  sample.append(text);
  host.append(sample);
}
const keyLine = kind => svg => shape(svg, 'line', {class: kind, x1: 0, x2: 26, y1: 4, y2: 4});
const keyBox = (kind, fill, opacity = 1) => svg => shape(svg, 'rect', {
  class: kind, width: 26, height: 8, style: `--fill:var(--${fill});fill-opacity:${opacity}`});

/** "gradients of layers.0" has the colour of the unit layers.0, and the strength of its kind. */
function readBuffers(plan) {
  const all = list(plan.arena?.buffers).map(one => {
    const [, kind, unit] = /^(.*?) of (.*)$/s.exec(one.name) ?? [null, 'buffers', one.name];
    return {...one, name: nameOf(one.name), kind, unit: nameOf(unit)};
  });
  const kinds = [...new Set(all.map(one => one.kind))];
  const strength = kind => [0.85, 0.45, 0.25][Math.min(2, kinds.indexOf(kind))];
  return {all, kinds, strength};
}
function arenaInWords(count, bytes, bound, atOnce) {
  const start = `${plain(count, 0)} ranges take turns in an arena of ${said('bytes', bytes)}. At ` +
    `most ${said('bytes', atOnce)} are held at one time in this step`;
  if (!(bound > 0)) return `${start}.`;
  const share = bytes === bound ? 'exactly that' : `${plain(bytes / bound * 100, 1)} % of it`;
  return `${start}; no arena can be smaller than the bound of ${said('bytes', bound)}, and this ` +
    `one has ${share}.`;
}

function drawArena(host, plan, time, numbers) {
  const {all: buffers, kinds, strength} = readBuffers(plan);
  const used = time.held.filter(one => isNumber(buffers[one.buffer]?.offset));
  drawn.held = 0;
  if (!used.length) return line(host, 'This plan has no arena: nothing is held in one.');
  const highest = most(used, one => buffers[one.buffer].offset + buffers[one.buffer].bytes);
  const {bytes = highest, bound} = plan.arena;
  const top = Math.max(bytes, bound ?? 0, highest) * 1.03;
  const pieces = used.map(one => {
    const {name, offset, bytes: size, kind, unit} = buffers[one.buffer];
    if (!numbers.has(unit)) numbers.set(unit, numbers.size);
    return {
      begin: one.begin, end: one.end, low: offset / top, high: (offset + size) / top,
      word: unit, unit, kind: 'held',
      dress: node => coloured(node, numbers.get(unit)).style.fillOpacity = strength(kind),
      tip: () => [name, `${said('bytes', size)} at ${said('bytes', offset)}`, between(one)]};
  });
  host.append(element('p', {class: 'summary', id: `${host.id}-says`},
                      arenaInWords(used.length, bytes, bound, mostAtOnce(used, buffers))));
  const legend = element('div', {class: 'legend'});
  for (const kind of kinds) key(legend, kind, keyBox('held', 'c0', strength(kind)));
  key(legend, 'arena', keyLine('top'));
  if (isNumber(bound)) key(legend, 'bound', keyLine('bound'));
  legend.append('one colour per unit, repeating after eight');
  host.append(legend);
  timeChart(host, {
    name: 'Arena over time', height: 320, above: 6, time, pieces,
    behind: (back, box) => drawBytes(back, box, top),
    over: (front, box, place) => {
      edges(front, box, time, place);
      for (const [kind, value] of [['top', bytes], ['bound', bound]]) {
        if (!isNumber(value)) continue;
        const y = box.above + (1 - value / top) * box.height;
        shape(front, 'line', {
          class: kind, x1: LEFT, x2: LEFT + box.width, y1: y, y2: y, 'pointer-events': 'none'});
      }
    }});
  gatherByUnit(pieces);
  drawn.held = pieces.length;
}
function drawBytes(back, box, top) {
  shape(back, 'rect', {
    class: 'frame', x: LEFT, y: box.above, width: box.width, height: box.height});
  const [, size] = unitFor('bytes', top);
  const {step, found} = ticks(0, top / size, 5);
  const texts = tickTexts('bytes', {step: step * size, found: found.map(at => at * size)});
  found.forEach((at, i) => {
    const y = box.above + (1 - at * size / top) * box.height;
    shape(back, 'line', {class: 'grid', x1: LEFT, x2: LEFT + box.width, y1: y, y2: y});
    shape(back, 'text', {x: LEFT - 6, y: y + 4, 'text-anchor': 'end'}, texts[i]);
  });
}
function mostAtOnce(held, buffers) {
  const changes = held.flatMap(one => {
    const {bytes} = buffers[one.buffer];
    return [[one.begin, bytes], [one.end, -bytes]];
  });
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let now = 0, largest = 0;
  for (const [, change] of changes) largest = Math.max(largest, now += change);
  return largest;
}
function edges(front, box, time, place) {
  for (const turn of time.turns) {
    const x = place(turn.begin);
    if (turn.begin > 0 && x >= LEFT && x <= LEFT + box.width)
      shape(front, 'line', {
        class: 'edge', x1: x, x2: x, y1: box.above - 4, y2: box.above + box.height});
  }
}
function gatherByUnit(pieces) {
  for (const one of pieces) {
    if (!one.unit) continue;
    if (!lit.units.has(one.unit)) lit.units.set(one.unit, []);
    lit.units.get(one.unit).push(one.node);
  }
}

function drawStreams(host, plan, time, numbers) {
  const {streams, spans, gaps, compute} = time;
  drawn.spans = drawn.gaps = 0;
  if (!spans.length) return line(host, 'This plan has no spans.');
  const lanes = Math.max(streams.length, most(spans, one => one.stream + 1));
  const low = stream => 1 - (stream + 1) / lanes, high = stream => 1 - (stream + 0.12) / lanes;
  const waits = gaps.map(one => ({
    begin: one.begin, end: one.end, low: low(compute), high: high(compute), kind: 'gap',
    tip: () => ['compute waits', causeOf(one, time), between(one)]}));
  const pieces = spans.map(one => {
    const unit = nameOf(one.unit), fill = kindOf(one);
    // A wait that has a length of its own lies on the gap that it makes.
    const thin = one.stream === compute && IDLE.has(one.action) ? 0.35 / lanes : 0;
    if (unit && !numbers.has(unit)) numbers.set(unit, numbers.size);
    return {
      begin: one.begin, end: one.end, low: low(one.stream) + thin, high: high(one.stream) - thin,
      word: unit || one.action, unit, kind: 'span', light: true,
      dress: node => {
        const isOdd = numbers.get(unit) % 2;  // tells neighbours apart
        node.style.setProperty('--fill', isOdd ? `color-mix(in srgb,var(--${fill}) 76%,black)`
                                               : `var(--${fill})`);
      },
      tip: () => spanInWords(one, unit, list(plan.timeline.sections))};
  });
  host.append(element('p', {class: 'summary', id: `${host.id}-says`}, streamsInWords(time)),
              streamsLegend(time));
  timeChart(host, {
    name: 'Streams over time', height: 20 + BELOW + 40 * lanes, above: 20, time,
    pieces: [...waits, ...pieces],
    behind: (back, box) => drawLanes(back, box, streams, lanes),
    over: (front, box, place) => {
      edges(front, box, time, place);
      for (const turn of time.turns) {
        const from = Math.max(LEFT, place(turn.begin));
        const width = Math.min(LEFT + box.width, place(turn.end)) - from;
        if (width > turn.name.length * 6.4 + 6)
          shape(front, 'text', {class: 'section', x: from + 4, y: 13}, turn.name);
      }
    }});
  gatherByUnit(pieces);
  drawn.spans = pieces.length;
  drawn.gaps = waits.length;
}
function drawLanes(back, box, streams, lanes) {
  const lane = box.height / lanes;
  for (let i = 0; i < lanes; ++i) {
    const y = box.above + (i + 0.12) * lane;
    shape(back, 'rect', {class: 'lane', x: LEFT, y, width: box.width, height: lane * 0.88});
    shape(back, 'text', {x: LEFT - 6, y: y + lane * 0.44 + 4, 'text-anchor': 'end'},
          nameOf(streams[i] ?? i));
  }
}
function streamsLegend(time) {
  const legend = element('div', {class: 'legend'});
  const present = new Set(time.spans.map(kindOf));
  const texts = {
    computing: 'compute', gathering: 'gather, refresh', reducing: 'reduce, stage, accumulate',
    updating: 'update, publish', other: 'other actions'};
  for (const fill in texts) if (present.has(fill)) key(legend, texts[fill], keyBox('span', fill));
  if (time.gaps.length) key(legend, 'compute waits', keyBox('gap', 'waiting'));
  return legend;
}
function spanInWords(one, unit, sections) {
  const words = [unit ? `${one.action}: ${unit}` : one.action];
  if (sections[one.section]) words.push(sections[one.section]);
  words.push(between(one));
  if (one.bytes > 0 && one.end > one.begin)
    words.push(`${said('bytes', one.bytes)}, ${said('rate', one.bytes / (one.end - one.begin))}`);
  return words;
}
function streamsInWords(time) {
  const {seconds, waiting, gaps, spans} = time;
  const shares = time.streams.map((name, i) => {
    const busy = spans.filter(one => one.stream === i && !IDLE.has(one.action));
    return `${nameOf(name)} ${plain(sum(busy, one => one.end - one.begin) / seconds * 100, 0)} %`;
  });
  let how = 'Compute never waits.';
  if (gaps.length) {
    const worst = gaps.reduce((a, b) => b.end - b.begin > a.end - a.begin ? b : a);
    const times = gaps.length === 1 ? 'once' : `${plain(gaps.length, 0)} times`;
    how = `Compute waits ${times}, for ${said('seconds', waiting)} in all ` +
      `(${plain(waiting / seconds * 100, 1)} %); at most for ` +
      `${said('seconds', worst.end - worst.begin)}, ${causeOf(worst, time)}.`;
  }
  return `The step takes ${said('seconds', seconds)}. ${how} Busy: ${shares.join(', ')}.`;
}

// ---- the part of the page
function drawTools(host) {
  const tools = element('div', {id: 'tools'});
  for (const [text, name, act] of [
      ['−', 'zoom out', () => zoom(2)], ['+', 'zoom in', () => zoom(0.5)],
      ['←', 'earlier', () => move(-0.4)], ['→', 'later', () => move(0.4)],
      ['whole step', 'whole step', () => look(0, 1)]]) {
    const button = element(
      'button', {type: 'button', class: 'tool', 'aria-label': name, title: name}, text);
    button.onclick = act;
    tools.append(button);
  }
  const shown = element('output');
  tools.append(shown);
  host.append(tools);
  return shown;
}
/** The sections of the whole step, with a frame round what the charts show of it. */
function drawOverview(host, time) {
  const overview = element(
    'div', {id: 'overview', role: 'group', 'aria-label': 'Sections of the step'});
  for (const turn of time.turns) {
    const says = `${turn.name}, ${between(turn)}`;
    const button = element(
      'button', {type: 'button', title: says, 'aria-label': `zoom to ${says}`}, turn.name);
    button.style.left = `${turn.begin / time.seconds * 100}%`;
    button.style.width = `${(turn.end - turn.begin) / time.seconds * 100}%`;
    button.onclick = () => look(turn.begin / time.seconds, turn.end / time.seconds);
    overview.append(button);
  }
  drawn.sections = time.turns.length;
  const frame = element('div', {id: 'window'});
  overview.append(frame);
  host.append(overview);
  return frame;
}
function drawTimesOf(host, plan) {
  const time = readTimeline(plan), {bytes, bound} = plan.arena ?? {};
  drawn.held = drawn.spans = drawn.gaps = drawn.sections = 0;
  if (!time) {
    line(host, 'This plan has no timeline.');
    if (isNumber(bytes)) {
      const least = isNumber(bound) ? `; none can be smaller than ${said('bytes', bound)}` : '';
      line(host, `The arena has ${said('bytes', bytes)}${least}.`);
    }
    return;
  }
  figure('step', said('seconds', time.seconds));
  figure('of the step compute waits', said('share', time.waiting / time.seconds));
  const shown = drawTools(host), frame = drawOverview(host, time);
  line(host, 'Drag over a chart to zoom, double-click for the whole step; Ctrl and the wheel ' +
             'zoom, Shift and the wheel move. A click on a section zooms to it.', 'summary');
  view.charts.push(() => {
    const from = view.from * time.seconds, to = view.to * time.seconds;
    drawn.from = from;
    drawn.to = to;
    shown.textContent = `${said('seconds', from)} to ${said('seconds', to)}`;
    frame.hidden = view.from === 0 && view.to === 1;
    frame.style.left = `${view.from * 100}%`;
    frame.style.width = `${(view.to - view.from) * 100}%`;
  });
  const numbers = new Map(list(plan.units).map((one, i) => [nameOf(one.name), i]));
  for (const [id, title, draw] of [
      ['arena', 'Arena over time', drawArena], ['streams', 'Streams over time', drawStreams]]) {
    const chart = element('figure', {id}, element('figcaption', {}, title));
    host.append(chart);
    part(chart, () => draw(chart, plan, time, numbers));
  }
  for (const show of view.charts) show();
}
