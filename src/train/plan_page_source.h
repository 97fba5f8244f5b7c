// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sherd {

// What the page of a plan consists of. Names from a plan go into the page as text nodes only.

inline constexpr const char* kPlanPageStyle = R"css(
:root{color-scheme:light dark;--paper:#fdfdfc;--ink:#1d1e20;--muted:#63666a;--line:#e0e0dc;
--soft:#f3f3f0;--accent:#2f6fb0;--bad:#b3261e;--waiting:#e5484d;--computing:#63736e;
--gathering:#2f6fb0;--reducing:#b8651b;--updating:#7d5ba6;--other:#9a9c9f;
--c0:#4f7cac;--c1:#d0894a;--c2:#5f9e7f;--c3:#b5657b;--c4:#8a78b5;--c5:#a39a4e;--c6:#5aa0ab;
--c7:#a9765a}
@media(prefers-color-scheme:dark){:root{--paper:#17181a;--ink:#e6e6e3;--muted:#a0a3a7;
--line:#35373b;--soft:#212327;--accent:#7fb2e5;--bad:#ff8a80;--waiting:#ff6369;--other:#6f7276}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;margin:2rem auto 4rem;
max-width:1180px;padding:0 1rem;color:var(--ink);background:var(--paper)}
h1{font-size:1.5rem;line-height:1.25;margin:0;overflow-wrap:anywhere;text-wrap:balance}
h2{font-size:1.1rem;margin:2.75rem 0 .75rem;padding-top:.75rem;border-top:1px solid var(--line)}
p{margin:.25rem 0 .75rem;overflow-wrap:anywhere}
.quiet,.summary,#source{color:var(--muted)}
.summary{font-size:13.5px;max-width:52rem}
.fault{color:var(--bad)}
#figures{display:flex;flex-wrap:wrap;gap:.75rem 2.5rem;margin:1.25rem 0}
#figures div{display:flex;flex-direction:column-reverse}
#figures dt{color:var(--muted);font-size:13px}
#figures dd{margin:0;font-size:1.55rem;line-height:1.2;font-variant-numeric:tabular-nums}
#facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,22rem),1fr));
gap:0 2rem;margin:0;font-size:14px}
#facts div{display:flex;gap:1rem;justify-content:space-between;border-bottom:1px solid var(--line);
padding:.2rem 0}
#facts dt{color:var(--muted);flex:none}
#facts dd{margin:0;text-align:right;overflow-wrap:anywhere;min-width:0}
.wide{overflow-x:auto}
.tall{max-height:30rem;overflow:auto;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.22rem 0 .22rem 1rem;border-bottom:1px solid var(--line);text-align:right;
white-space:nowrap;font-weight:400}
#memory table,#units table,#traffic table{max-width:56rem}
#units .tall{max-width:57rem}
tr>:first-child,th.word,td.word{text-align:left}
tr>:first-child{padding-left:.4rem}
tr>:last-child{padding-right:.4rem}
tbody th{white-space:normal;overflow-wrap:anywhere;min-width:6.5rem}
thead th{color:var(--muted);font-size:13px;vertical-align:bottom}
.tall thead th{position:sticky;top:0;background:var(--paper);border-bottom:0;
box-shadow:inset 0 -1px var(--line)}
tfoot th,tfoot td{font-weight:600;border-bottom:0;border-top:1px solid var(--muted)}
.tall tfoot th,.tall tfoot td{position:sticky;bottom:0;background:var(--paper)}
thead button{all:unset;cursor:pointer;color:inherit}
thead button:hover{color:var(--ink)}
thead button::after{content:"";display:inline-block;width:.9em;text-align:center}
th[aria-sort=ascending] button::after{content:"↑"}
th[aria-sort=descending] button::after{content:"↓"}
.unit{opacity:.75;margin-left:.3em}
.exposed{background:linear-gradient(to left,color-mix(in srgb,var(--waiting) 30%,transparent)
calc(var(--share)*100%),transparent 0)}
.over{color:var(--bad)}
tr[aria-selected=true]>*{background:color-mix(in srgb,var(--accent) 14%,var(--paper))}
#worlds tbody tr{cursor:pointer}
.swatch{display:inline-block;width:.75em;height:.75em;border-radius:2px;margin-right:.5em;
background:var(--fill)}
.bar{display:grid;grid-template-columns:5rem 1fr;align-items:center;gap:.5rem;margin:.3rem 0;
font-size:13px;color:var(--muted)}
.bar>div{display:flex;height:22px;background:var(--soft)}
.bar i{background:var(--fill);min-width:1px;box-shadow:inset -1px 0 var(--paper)}
.bars{margin-bottom:1rem}
button.tool{font:inherit;font-size:13px;color:var(--ink);background:var(--soft);cursor:pointer;
border:1px solid var(--line);border-radius:4px;padding:.15rem .6rem}
button.tool:hover{border-color:var(--muted)}
:focus-visible{outline:2px solid var(--accent);outline-offset:1px}
#tools{display:flex;flex-wrap:wrap;gap:.35rem;align-items:center;font-size:13px}
#tools output{color:var(--muted);margin-left:.5rem;font-variant-numeric:tabular-nums}
#overview{position:relative;height:26px;margin:.6rem 8px .3rem 66px;background:var(--soft)}
#overview button{all:unset;box-sizing:border-box;position:absolute;top:0;bottom:0;cursor:pointer;
overflow:hidden;white-space:nowrap;text-overflow:ellipsis;font-size:12px;line-height:26px;
padding:0 4px;border-left:1px solid var(--muted);color:var(--muted)}
#overview button:hover,#overview button:focus-visible{color:var(--ink);background:var(--line)}
#window{position:absolute;top:-2px;bottom:-2px;border:2px solid var(--accent);border-radius:2px;
pointer-events:none;min-width:4px}
figure{margin:0 0 1.25rem}
figcaption{font-weight:600}
svg{display:block;width:100%}
svg text{font-size:11px;fill:var(--muted)}
figure>svg{cursor:crosshair;touch-action:pan-y;user-select:none;-webkit-user-select:none}
.frame{fill:var(--soft)}
.grid{stroke:var(--line)}
.lane{fill:var(--soft)}
.edge{stroke:var(--muted);stroke-dasharray:1 3}
.top{stroke:var(--ink)}
.bound{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:7 4}
.cursor{stroke:var(--ink);opacity:.5;pointer-events:none}
.chosen{fill:var(--accent);opacity:.2;pointer-events:none}
.held{fill:var(--fill);stroke:var(--ink);stroke-opacity:.3;stroke-width:.75}
.span{fill:var(--fill)}
.gap{fill:var(--waiting);opacity:.45}
.held,.span,.gap{vector-effect:non-scaling-stroke}
.lit{stroke:var(--ink);stroke-opacity:1;stroke-width:1.5}
svg .word{fill:var(--ink);pointer-events:none}
svg .word.light{fill:#fff}
svg .section{fill:var(--muted)}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;font-size:13px;color:var(--muted);
margin:.2rem 0 .3rem}
.legend svg{display:inline-block;width:26px;height:8px;margin-right:.4em;vertical-align:middle}
#tip{position:fixed;z-index:9;pointer-events:none;background:var(--paper);color:var(--ink);
border:1px solid var(--muted);border-radius:4px;padding:.35rem .6rem;font-size:13px;
line-height:1.4;max-width:min(24rem,90vw);overflow-wrap:anywhere;
font-variant-numeric:tabular-nums;box-shadow:0 2px 8px #0003}
#tip b{display:block}
#choice{display:flex;flex-wrap:wrap;gap:.4rem 1rem;align-items:center;margin-bottom:.9rem}
#choice input{flex:1 1 14rem;max-width:30rem;accent-color:var(--accent)}
#choice output{font-weight:600;min-width:7rem}
#multiples{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,18rem),1fr));
gap:1rem 1.75rem;margin-bottom:1.25rem}
#multiples figure{margin:0;min-width:0}
#multiples figcaption{font-size:13.5px;font-weight:400;color:var(--muted);display:flex;
justify-content:space-between;align-items:baseline;gap:1rem}
#multiples b{color:var(--ink);font-size:1.15rem;font-weight:600;white-space:nowrap;
font-variant-numeric:tabular-nums}
#multiples svg{cursor:pointer}
.curve{fill:none;stroke:var(--accent);stroke-width:1.75}
.ideal{fill:none;stroke:var(--muted);stroke-dasharray:5 4}
.dot{fill:var(--accent)}
.mark{fill:var(--paper);stroke:var(--accent);stroke-width:2.5}
@media(max-width:520px){table{font-size:13px}th,td{padding-left:.5rem}.unit{display:block}
thead th{white-space:normal}tbody th{min-width:5.5rem}.bar{grid-template-columns:4.2rem 1fr}}
summary{cursor:pointer;color:var(--muted)}
pre{background:var(--soft);padding:.9rem;overflow:auto;max-height:40rem;font-size:12.5px;
line-height:1.45}
)css";

inline constexpr const char* kPlanPageBody = R"html(
<header><h1 id="title">A plan</h1><p id="source"></p></header>
<noscript><p>This page draws its charts with JavaScript, which is switched off here.</p></noscript>
<dl id="figures"></dl><dl id="facts"></dl>
<section id="memory"><h2>Memory of a rank</h2></section>
<section id="times"><h2>The step over time</h2></section>
<section id="units"><h2>Units</h2></section>
<section id="traffic"><h2>Traffic of a step</h2></section>
<section id="worlds"><h2>Other world sizes</h2></section>
<section id="program"><h2>Program</h2></section>
<div id="tip" hidden></div>
)html";

/// Numbers with their units, tables, and what is drawn with them alone.
inline constexpr const char* kPlanPageTables = R"js(
'use strict';
const started = performance.now();
const drawn = document.body.dataset;  // what was drawn, for those who check the page
const by = id => document.getElementById(id);
const isNumber = value => typeof value === 'number' && Number.isFinite(value);
const list = value => Array.isArray(value) ? value : [];
const sum = (rows, of) => rows.reduce((all, row) => all + (isNumber(of(row)) ? of(row) : 0), 0);
const most = (rows, of) => rows.reduce((all, row) => Math.max(all, of(row) ?? 0), 0);
const nameOf = name => name === '' ? '(root)' : String(name ?? '');

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function shape(parent, name, attributes, text) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
const line = (host, text, kind = 'quiet') => host.append(element('p', {class: kind}, text));
function coloured(node, index) {
  node.style.setProperty('--fill', `var(--c${index % 8})`);
  return node;
}

// ---- numbers
const UNITS = {
  bytes: [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10], ['B', 1]],
  seconds: [['s', 1], ['ms', 1e-3], ['µs', 1e-6]],
  rate: [['GiB/s', 2 ** 30], ['MiB/s', 2 ** 20], ['B/s', 1]],
  share: [['%', 0.01]],
  count: [['', 1]],
  thousands: [['M', 1e6], ['k', 1e3], ['', 1]],  // where there is no room for all digits
};
const unitFor = (kind, largest) =>
  UNITS[kind].find(([, size]) => Math.abs(largest) >= size) ?? UNITS[kind].at(-1);
const decimals = (value, digits) =>
  Math.max(0, Math.min(digits - 1, digits - 1 - Math.floor(Math.log10(Math.max(value, 1)))));
const plain = (value, places) => value.toLocaleString(
  'en-US', {minimumFractionDigits: places, maximumFractionDigits: places}).replace('-', '−');
const ranks = count => `${plain(count, 0)} rank${count === 1 ? '' : 's'}`;
/** A value on its own: three digits and its unit. */
function said(kind, value) {
  if (!isNumber(value)) return '–';
  if (value === 0) return '0';
  const [unit, size] = unitFor(kind, value);
  const scaled = value / size;
  const whole = unit === 'B' || (kind === 'count' && Number.isInteger(value));
  return `${plain(scaled, whole ? 0 : decimals(Math.abs(scaled), 3))}${unit && ' ' + unit}`;
}
const exactly = (kind, value) =>
  kind === 'bytes' ? `${plain(value, 0)} bytes` : kind === 'seconds' ? `${value} s` : `${value}`;
/** How a column of values is written: one unit and one number of places for all of them. */
function columnOf(kind, values, signed) {
  const largest = Math.max(0, ...values.filter(isNumber).map(Math.abs));
  const [unit, size] = unitFor(kind, largest);
  const whole = unit === 'B' || (kind === 'count' && values.every(one => !(one % 1)));
  const places = whole ? 0 : kind === 'share' ? 1 : decimals(largest / size, 4);
  const write = value => {
    if (!isNumber(value)) return '–';
    const least = 10 ** -places;
    const sign = signed && value > 0 ? '+' : '';
    if (value !== 0 && Math.abs(value / size) < least / 2)  // a zero would be a lie
      return value < 0 ? `> −${plain(least, places)}` : `< ${sign}${plain(least, places)}`;
    return sign + plain(value / size, places);
  };
  return {unit, write};
}

// ---- tables
/** columns: {title, kind, of, total, signed, make(cell, row)}; the first one names the row. */
function table(host, title, columns, rows, {sortable, tall, totalName} = {}) {
  const head = element('tr'), made = element('tbody'), foot = element('tr');
  const lines = rows.map(() => element('tr'));
  columns.forEach((column, at) => {
    const isWord = column.kind === 'word';
    const values = rows.map(column.of);
    const total = totalName && (at ? column.total : totalName);
    const how = isWord ? {unit: '', write: nameOf}
                       : columnOf(column.kind, isNumber(total) ? [...values, total] : values,
                                  column.signed);
    const words = [column.title];
    if (how.unit) words.push(element('span', {class: 'unit'}, how.unit));
    const header = element('th', {scope: 'col', class: isWord ? 'word' : 'number'});
    header.append(...(sortable ? [sorter(header, made, lines, values, words)] : words));
    head.append(header);
    const cellOf = (value, name) => {
      const cell = element(name, {class: isWord ? 'word' : 'number'}, how.write(value));
      if (!isWord && isNumber(value)) {
        cell.dataset.value = value;
        cell.title = exactly(column.kind, value);
      }
      return cell;
    };
    rows.forEach((row, i) => {
      const cell = cellOf(values[i], at ? 'td' : 'th');
      if (!at) cell.scope = 'row';
      column.make?.(cell, row, i);
      lines[i].append(cell);
    });
    if (!at) foot.append(element('th', {scope: 'row'}, totalName ?? ''));
    else foot.append(isNumber(total) ? cellOf(total, 'td') : element('td'));
  });
  made.append(...lines);
  const whole = element('table', {}, element('thead', {}, head), made);
  if (totalName) whole.append(element('tfoot', {}, foot));
  host.append(element(
    'div', {class: tall ? 'wide tall' : 'wide', tabindex: 0, role: 'region', 'aria-label': title},
    whole));
  return lines;
}
function sorter(header, body, lines, values, words) {
  const button = element('button', {type: 'button'}, ...words);
  button.onclick = () => {
    const upwards = typeof values[0] === 'string' ? header.ariaSort !== 'ascending'
                                                  : header.ariaSort === 'descending';
    for (const other of header.parentNode.children) other.ariaSort = null;
    header.ariaSort = upwards ? 'ascending' : 'descending';
    const order = values.map((value, i) => i).sort((a, b) => {
      const x = values[a] ?? -Infinity, y = values[b] ?? -Infinity;
      const way = typeof x === 'string' && typeof y === 'string'
        ? x.localeCompare(y, 'en', {numeric: true}) : x < y ? -1 : x > y ? 1 : 0;
      return (upwards ? way : -way) || a - b;
    });
    body.append(...order.map(i => lines[i]));
  };
  return button;
}

// ---- parts that are text and tables
function drawHead(plan) {
  const title = String(plan.title || 'A plan');
  document.title = `Sherd: ${title}`;
  by('title').textContent = title;
  const about = [];
  if (plan.source) about.push(`Plan of ${plan.source}`);
  if (isNumber(plan.world)) about.push(ranks(plan.world));
  if (plan.device) about.push(String(plan.device));
  by('source').textContent = about.join(' · ');
  for (const [name, value] of list(plan.facts)) {
    by('facts').append(element('div', {}, element('dt', {}, nameOf(name)),
                               element('dd', {}, String(value ?? '–'))));
  }
  drawn.facts = list(plan.facts).length;
}
function figure(name, value) {
  by('figures').append(element('div', {}, element('dt', {}, name), element('dd', {}, value)));
}

function drawMemory(host, plan) {
  const rows = list(plan.ledger), total = plan.total ?? {};
  drawn.ledger = rows.length;
  if (!rows.length) return line(host, 'This plan has no memory by name.');
  const isMeasured = isNumber(total.measured) || rows.some(row => isNumber(row.measured));
  const planned = total.planned ?? sum(rows, row => row.planned);
  const measured = isMeasured ? total.measured ?? sum(rows, row => row.measured) : null;
  figure('memory of a rank, planned', said('bytes', planned));
  if (isMeasured) figure('measured', said('bytes', measured));
  const words = rows.map(row => `${nameOf(row.name)} ${said('bytes', row.planned)}`);
  const bars = element('div', {
    class: 'bars', role: 'img', 'aria-label': `Memory of a rank: ${words.join(', ')}`});
  const widest = Math.max(planned, measured ?? 0, sum(rows, row => row.planned),
                          sum(rows, row => row.measured));
  for (const which of isMeasured ? ['planned', 'measured'] : ['planned']) {
    const bar = element('div');
    rows.forEach((row, i) => {
      if (!(row[which] > 0)) return;
      const title = `${nameOf(row.name)}: ${said('bytes', row[which])}`;
      const piece = coloured(element('i', {title}), i);
      piece.style.width = `${row[which] / widest * 100}%`;
      bar.append(piece);
    });
    bars.append(element('div', {class: 'bar'}, element('span', {}, which), bar));
  }
  host.append(bars);
  const columns = [
    {title: 'what', kind: 'word', of: row => row.name, make: (cell, row, i) =>
      cell.prepend(coloured(element('span', {class: 'swatch'}), i))},
    {title: 'planned', kind: 'bytes', of: row => row.planned, total: planned},
    {title: 'share', kind: 'share', of: row => isNumber(row.planned) ? row.planned / planned : null,
     total: 1}];
  if (isMeasured) {
    const difference = row => isNumber(row.measured) && isNumber(row.planned)
      ? row.measured - row.planned : null;
    columns.splice(2, 0,
      {title: 'measured', kind: 'bytes', of: row => row.measured, total: measured},
      {title: 'difference', kind: 'bytes', of: difference, total: measured - planned, signed: true,
       make: (cell, row) => cell.classList.toggle('over', difference(row) > 0)});
  }
  table(host, 'Memory by name', columns, rows, {totalName: 'total'});
  if (!isMeasured) line(host, 'Nothing was measured: these are the planned bytes.');
  for (const [which, all] of [['planned', planned], ['measured', measured]]) {
    const added = sum(rows, row => row[which]);
    if (isNumber(all) && added !== all) {
      line(host, `The rows add up to ${exactly('bytes', added)} ${which}, not to the total of ` +
                 `${exactly('bytes', all)}.`, 'fault');
    }
  }
}

function drawUnits(host, plan) {
  const rows = list(plan.units);
  drawn.units = rows.length;
  if (!rows.length) return line(host, 'This plan has no times of single units.');
  const longest = most(rows, row => row.exposed), waited = sum(rows, row => row.exposed);
  const worst = rows.find(row => row.exposed === longest && longest > 0);
  line(host, worst
    ? `Communication that no computation hides takes ${said('seconds', waited)} in all; the ` +
      `longest, ${said('seconds', longest)}, is for ${nameOf(worst.name)}.`
    : 'Computation hides all communication.', 'summary');
  const of = (title, kind, key) =>
    ({title, kind, of: row => row[key], total: sum(rows, row => row[key])});
  table(host, 'Units', [
    {title: 'unit', kind: 'word', of: row => nameOf(row.name)},
    of('forward', 'seconds', 'forward'), of('backward', 'seconds', 'backward'),
    of('activations', 'bytes', 'activations'),
    {...of('exposed', 'seconds', 'exposed'), make: (cell, row) => {
      if (!(row.exposed > 0)) return;
      cell.classList.add('exposed');
      cell.style.setProperty('--share', row.exposed / longest);
    }}], rows, {sortable: true, tall: rows.length > 16, totalName: `${rows.length} units`});
}

function drawTraffic(host, plan) {
  const rows = list(plan.traffic);
  drawn.traffic = rows.length;
  if (!rows.length) return line(host, 'This plan has no traffic.');
  const of = (title, kind, key) =>
    ({title, kind, of: row => row[key], total: sum(rows, row => row[key])});
  table(host, 'Traffic of a step', [
    {title: 'axis', kind: 'word', of: row => row.axis},
    {title: 'collective', kind: 'word', of: row => row.collective},
    of('calls', 'count', 'calls'), of('full side', 'bytes', 'bytes'),
    of('sent by a rank', 'bytes', 'wire'), of('time', 'seconds', 'seconds'),
    {title: 'speed', kind: 'rate', of: row => row.seconds > 0 ? row.wire / row.seconds : null}],
    rows, {totalName: 'total'});
}

function drawProgram(host, plan) {
  if (typeof plan.program !== 'string') return line(host, 'This plan comes without its program.');
  const count = plan.program.trimEnd().split('\n').length;
  host.append(element('details', {}, element('summary', {}, `${plain(count, 0)} lines`),
                      element('pre', {}, plan.program)));
}
)js";

/// The arena and the streams over one axis of time.
inline constexpr const char* kPlanPageTimes = R"js(
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
)js";

/// World sizes side by side, and the start of it all.
inline constexpr const char* kPlanPageWorlds = R"js(
// ---- worlds
const CHART = {width: 340, height: 170, left: 58, right: 12, above: 8, below: 22};
function worldMeasures(worlds) {
  const first = worlds[0], rate = one => one.tokens_per_second / one.world;
  const isRate = one => isNumber(one.tokens_per_second);
  const rateOf = one => isRate(one) ? rate(one) : null;
  return [
    {id: 'bytes', title: 'memory of a rank', kind: 'bytes', of: one => one.bytes},
    {id: 'seconds', title: 'step', kind: 'seconds', of: one => one.seconds},
    {id: 'exposed', title: 'exposed communication', kind: 'seconds', of: one => one.exposed},
    {id: 'rate', title: 'tokens/s per rank', kind: 'count', of: rateOf},
    {id: 'total', title: 'tokens/s of all ranks', kind: 'count', of: one => one.tokens_per_second,
     ideal: isRate(first) ? one => rate(first) * one.world : null, isLog: true},
    {id: 'efficiency', title: 'efficiency', kind: 'share', ideal: () => 1,
     of: one => isRate(one) && isRate(first) ? rate(one) / rate(first) : null},
  ];
}
function worldsInWords(worlds, efficiency) {
  const first = worlds[0], last = worlds.at(-1), kept = efficiency(last);
  if (worlds.length === 1) return `One world size, of ${ranks(first.world)}.`;
  const [least, largest] = [first, last].map(one => plain(one.world, 0));
  const words = `${worlds.length} world sizes, from ${least} to ${largest} ranks.`;
  if (!isNumber(kept)) return words;
  return `${words} At ${largest}, a rank keeps ${plain(kept * 100, 1)} % of its speed at ` +
    `${least}: that is its efficiency. Dashed: scaling without loss.`;
}
function drawWorlds(host, plan) {
  const worlds = list(plan.worlds).filter(one => one.world > 0).sort((a, b) => a.world - b.world);
  drawn.worlds = worlds.length;
  if (!worlds.length) return line(host, 'This plan looks at no other world sizes.');
  const measures = worldMeasures(worlds);
  const measure = id => measures.find(one => one.id === id).of;
  const own = worlds.find(one => one.world === plan.world);
  if (isNumber(own?.tokens_per_second))
    figure('tokens/s per rank', said('count', measure('rate')(own)));
  line(host, worldsInWords(worlds, measure('efficiency')), 'summary');
  const slider = element('input', {
    type: 'range', min: 0, max: worlds.length - 1, step: 1, id: 'world'});
  const shown = element('output', {for: 'world'}), note = element('span', {class: 'quiet'});
  const label = element('label', {for: 'world'}, 'world size');
  host.append(element('div', {id: 'choice'}, label, slider, shown, note));
  const grid = element('div', {id: 'multiples'});
  host.append(grid);
  const charts = measures.map(one => worldChart(grid, one, worlds));
  const columns = measures.map(({title, kind, of}) => ({title, kind, of}));
  const lines = table(host, 'World sizes', [
    {title: 'ranks', kind: 'count', of: one => one.world}, ...columns], worlds);
  const choose = (at, words = '') => {
    slider.value = at;
    slider.ariaValueText = shown.value = ranks(worlds[at].world);
    note.textContent = words;
    for (const chart of charts) chart(at);
    lines.forEach((one, i) => one.setAttribute('aria-selected', i === at));
    drawn.world = worlds[at].world;
  };
  const follow = () => {
    const asked = /[#&]world=(\d+)/.exec(location.hash);
    const wanted = asked ? Number(asked[1]) : plan.world ?? worlds[0].world;
    const far = one => Math.abs(one.world - wanted);
    const at = worlds.reduce((best, one, i) => far(one) < far(worlds[best]) ? i : best, 0);
    choose(at, worlds[at].world === wanted ? '' : `this plan has no ${ranks(wanted)}`);
  };
  const pick = at => {
    choose(at);
    history.replaceState(null, '', `#world=${worlds[at].world}`);
  };
  slider.oninput = () => pick(Number(slider.value));
  lines.forEach((one, i) => one.onclick = () => pick(i));
  grid.onclick = event => {
    const chart = event.target.closest('svg');
    if (chart) pick(chart.nearest(event));
  };
  addEventListener('hashchange', follow);
  follow();
}
/** Where the points of a measure lie in its chart. */
function worldScales(measure, worlds, points) {
  const {width, height, left, right, above, below} = CHART;
  const all = points.flatMap(one => [one.value, one.ideal]).filter(isNumber);
  const isLog = measure.isLog && Math.min(...all) > 0;
  const high = Math.max(...all) * (isLog ? 1.3 : 1.08) || 1;
  const low = isLog ? Math.min(...all) / 1.3 : 0;
  const up = isLog ? Math.log : value => value;
  const share = value => (up(value) - up(low)) / (up(high) - up(low));
  const [from, to] = [worlds[0].world, worlds.at(-1).world].map(Math.log);
  const along = world => to > from ? (Math.log(world) - from) / (to - from) : 0.5;
  const [, size] = unitFor(measure.kind, high);
  const marks = isLog ? powers(low, high) : ticks(0, high / size, 4).found.map(at => at * size);
  const step = (marks[1] ?? high) - marks[0];
  return {
    x: world => left + 8 + along(world) * (width - left - 8 - right),
    y: value => above + (1 - share(value)) * (height - above - below),
    marks,
    texts: isLog ? marks.flatMap(at => tickTexts(measure.kind, {step: at, found: [at]}))
                 : tickTexts(measure.kind, {step, found: marks}),
  };
}
/** Draws one measure over the worlds; the function that it returns marks one of them. */
function worldChart(grid, measure, worlds) {
  const {width, height, left, right} = CHART;
  const value = element('b');
  const host = element('figure', {'data-measure': measure.id},
                       element('figcaption', {}, measure.title, value));
  grid.append(host);
  const points = worlds
    .map((one, i) => ({i, world: one.world, value: measure.of(one), ideal: measure.ideal?.(one)}))
    .filter(one => isNumber(one.value));
  if (!points.length) {
    line(host, 'This plan does not say.');
    return () => {};
  }
  const {x, y, marks, texts} = worldScales(measure, worlds, points);
  const words = points.map(one => `${said(measure.kind, one.value)} at ${one.world}`);
  const svg = shape(host, 'svg', {
    viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `${measure.title}: ${words.join(', ')}`});
  marks.forEach((at, i) => {
    shape(svg, 'line', {class: 'grid', x1: left, x2: width - right, y1: y(at), y2: y(at)});
    shape(svg, 'text', {x: left - 6, y: y(at) + 4, 'text-anchor': 'end'}, texts[i]);
  });
  worldLabels(svg, worlds, x, height - 5);
  const path = of => points.map(one => `${x(one.world)},${y(of(one))}`).join(' ');
  if (measure.ideal) shape(svg, 'polyline', {class: 'ideal', points: path(one => one.ideal)});
  shape(svg, 'polyline', {class: 'curve', points: path(one => one.value)});
  for (const one of points)
    shape(svg, 'circle', {class: 'dot', r: 2.5, cx: x(one.world), cy: y(one.value)});
  const mark = shape(svg, 'circle', {class: 'mark', r: 5});
  svg.nearest = event => {
    const box = svg.getBoundingClientRect();
    const far = one => Math.abs(x(one.world) - (event.clientX - box.left) / box.width * width);
    return points.reduce((a, b) => far(b) < far(a) ? b : a).i;
  };
  return at => {
    const one = points.find(other => other.i === at);
    value.textContent = said(measure.kind, one?.value);
    mark.setAttribute('visibility', one ? 'visible' : 'hidden');
    if (!one) return;
    mark.setAttribute('cx', x(one.world));
    mark.setAttribute('cy', y(one.value));
  };
}
function powers(low, high) {
  const found = [];
  for (let at = 10 ** Math.ceil(Math.log10(low)); at <= high; at *= 10) found.push(at);
  return found.length ? found : [low * 1.3];
}
/** The sizes below a chart, as far as they don't touch; the last one always. */
function worldLabels(svg, worlds, x, y) {
  const half = one => plain(one.world, 0).length * 3.3 + 4;
  const place = one => Math.min(x(one.world), CHART.width - half(one) + 4);
  const last = worlds.at(-1);
  let free = -Infinity;
  for (const one of worlds) {
    const isLast = one === last;
    if (place(one) - half(one) < free) continue;
    if (!isLast && place(one) + half(one) > place(last) - half(last)) continue;
    shape(svg, 'text', {x: place(one), y, 'text-anchor': 'middle'}, plain(one.world, 0));
    free = place(one) + half(one);
  }
}

// ---- the page
const faults = [];
/** A part that fails leaves the others alone, and says so. */
function part(host, draw) {
  try {
    draw();
  } catch (error) {
    faults.push(String(error));
    drawn.error = faults.join('; ');
    console.error(error);
    line(host, `This part could not be drawn: ${error}`, 'fault');
  }
}
addEventListener('error', event => { drawn.error = [...faults, event.message].join('; '); });
part(document.querySelector('header'), () => {
  let plan;
  try {
    plan = JSON.parse(by('plan').textContent);
    if (plan === null || typeof plan !== 'object') throw new Error('it is no object');
  } catch (error) {
    drawn.error = String(error);
    for (const one of document.querySelectorAll('section')) one.remove();
    const words = `There is no plan in this page that can be read: ${error.message}`;
    return line(document.querySelector('header'), words, 'fault');
  }
  part(by('facts'), () => drawHead(plan));
  for (const [id, draw] of [
      ['memory', drawMemory], ['times', drawTimesOf], ['units', drawUnits],
      ['traffic', drawTraffic], ['worlds', drawWorlds], ['program', drawProgram]]) {
    part(by(id), () => draw(by(id), plan));
  }
});
drawn.height = document.body.offsetHeight;  // lays the page out, which belongs to the time below
drawn.milliseconds = Math.round(performance.now() - started);
drawn.drawn = 'yes';
)js";

}  // namespace sherd
