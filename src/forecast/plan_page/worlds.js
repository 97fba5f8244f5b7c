// SPDX-License-Identifier: Apache-2.0
// World sizes side by side, and the start of the page.
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
