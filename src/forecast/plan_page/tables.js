// SPDX-License-Identifier: Apache-2.0
// Numbers with their units, tables, and the parts of the page that consist of them.
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
