'use strict';
// Makes a list of what is chosen on the page, as dpmf_jax.serving.folding does.
// What is chosen is in `chosen`; nothing here sends or stores it.

const find = (id) => document.getElementById(id);
const model = JSON.parse(find('model').textContent);
const buffer = (text) =>
  Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
const dot = (a, b) => a.reduce((sum, x, c) => sum + x * b[c], 0);

const names = model.names;
const rank = model.prior.length;
const [sizes, whole] = [model.row, model.whole].map(buffer);
const vectors = Array.from(new Float32Array(sizes), (size, i) =>
  Float64Array.from(
    new Int16Array(whole, 2 * rank * i, rank),
    (x, c) => x * size * model.column[c],
  ));
const weight = model.weight && new Float32Array(buffer(model.weight));
const share = model.share && new Float32Array(buffer(model.share));
const chosen = new Map(); // item -> rating, in the order of choosing

// What each item adds to a user's row that is a sum: types.Sum.
function summed(own) {
  // One weight for an item, or one for each of its columns.
  const wide = weight.length / names.length;
  return own.map(([i]) => vectors[i].map((q, c) =>
    model.counted * weight[i * wide + (c % wide)] * q));
}

// And to one that is a ridge regression, types.Fit: with s = 1 / sqrt(ridge)
// and e what is left of a rating, row - prior = s (1 + sum of sq sq^T)^-1 sq e.
function regressed(own) {
  const scaled = own.map(([i]) => vectors[i].map((q, c) => q * model.spread[c]));
  const left = own.map(([i, rating]) =>
    rating - model.offset - dot(vectors[i], model.prior));
  const rows = Array.from({length: rank}, (_, a) => Float64Array.from([
    ...model.prior.map((_, b) =>
      scaled.reduce((sum, q) => sum + q[a] * q[b], Number(a === b))),
    ...scaled.map((q, k) => q[a] * left[k]),
  ]));
  rows.forEach((pivot, a) => { // by Gauss and Jordan
    const first = pivot[a];
    pivot.forEach((x, b) => { pivot[b] = x / first; });
    rows.forEach((row, other) => {
      const times = row[a];
      if (other !== a) pivot.forEach((x, b) => { row[b] -= times * x; });
    });
  });
  return own.map((_, k) => model.spread.map((s, c) => s * rows[c][rank + k]));
}

// Predictions of all items, scores that they are listed by, which are shrunk as
// in serving.models.listing, and what each of one's own adds to that of an item.
function scored() {
  const own = [...chosen];
  const parts = weight ? summed(own) : regressed(own);
  const user = model.prior.map((x, c) =>
    parts.reduce((sum, part) => sum + part[c], x));
  const predicted = vectors.map((q) => model.offset + dot(q, user));
  return {
    predicted,
    scores: predicted.map((x, item) =>
      share ? model.floor + share[item] * (x - model.floor) : x),
    reasons: (item) => own
      .map(([mine], k) => ({mine, part: dot(vectors[item], parts[k])}))
      .filter(({part}) => part > 0)
      .sort((a, b) => b.part - a.part),
  };
}

const cold = scored().scores;
const byScore = (scores) => (a, b) => scores[b] - scores[a] || a - b;
const plain = (text) =>
  text.normalize('NFD').replace(/\p{M}/gu, '').toLowerCase();
const searched = names.map(plain);

// An element; text is text, whatever is in it.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
const named = (item) => make('bdi', {}, names[item]);

// A button that sets the rating of an item, or takes it away.
function setter(item, rating, label, ...children) {
  return make('button', {
    'type': 'button', 'data-item': item, 'data-rating': rating,
    'aria-label': label, 'title': label,
  }, ...children);
}

// A button to like an item, or stars.
function choice(item) {
  const mine = chosen.get(item);
  if (!model.stars) {
    const heart = mine === undefined ? '♡' : '♥';
    const button = setter(item, model.like, `Like ${names[item]}`, heart);
    button.setAttribute('aria-pressed', mine !== undefined);
    return button;
  }
  const group = make('span', {
    'class': 'stars', 'role': 'group',
    'aria-label': `Stars for ${names[item]}: arrow keys move, Enter chooses`,
  });
  model.stars.forEach((star, k) => {
    const button = setter(item, star, `${star} of ${model.stars.at(-1)}`,
      star <= mine ? '★' : '☆');
    button.setAttribute('aria-pressed', star === mine);
    // One stop for Tab in each group.
    button.tabIndex = (mine === undefined ? k === 0 : star === mine) ? 0 : -1;
    group.append(button);
  });
  return group;
}

function result(item) {
  return make('li', {}, make('span', {'class': 'name'}, named(item)),
    choice(item));
}

function owned(item) {
  const row = result(item);
  if (!model.stars) row.lastChild.remove();
  row.append(setter(item, 'none', `Forget ${names[item]}`, '×'));
  return row;
}

function recommended(item, predicted, score, reasons) {
  const mine = reasons.slice(0, 2).map((reason) => named(reason.mine));
  if (mine.length > 1) mine.splice(1, 0, ' and ');
  const why = mine.length ? ['because of ', ...mine] : [];
  if (model.stars) {
    const [low, high] = model.scale;
    const shown = Math.min(Math.max(predicted, low), high).toFixed(1);
    why.unshift(`about ${shown} for you${mine.length ? ', ' : ''}`);
  }
  const row = result(item);
  row.dataset.score = score;
  if (why.length) row.firstChild.append(make('small', {}, ...why));
  return row;
}

function search() {
  const query = plain(find('query').value).trim();
  const words = query.split(/\s+/);
  const fits = (item) => // a whole title first, then how titles begin
    searched[item].startsWith(query) + (searched[item] === query);
  const hits = query === '' ? [] : [...names.keys()]
    .filter((item) => words.every((word) => searched[item].includes(word)))
    .sort((a, b) => fits(b) - fits(a) || byScore(cold)(a, b));
  const shown = hits.slice(0, 8);
  find('results').replaceChildren(...shown.map(result));
  find('found').textContent = query === '' ? '' : hits.length === 0 ?
    'No title has that.' :
    `${hits.length} found${hits.length > 8 ? ', the first 8 are shown' : ''}.`;
}

// Draws all lists anew; who had a button in focus finds it or the next one.
function draw() {
  const {list, at, item, rating} = focused();
  search();
  const {predicted, scores, reasons} = scored();
  const best = [...names.keys()].filter((each) => !chosen.has(each))
    .sort(byScore(scores)).slice(0, model.k);
  find('own').hidden = chosen.size === 0;
  find('chosen').replaceChildren(...[...chosen.keys()].map(owned));
  find('list').replaceChildren(...best.map((each) =>
    recommended(each, predicted[each], scores[each],
      model.same ? [] : reasons(each))));
  const start = chosen.size === 0 ? 'Nothing chosen yet: this is where ' +
    'everybody starts.' : `From your choices: ${chosen.size}.`;
  find('said').textContent = (model.same ? 'This model has one order for ' +
    'everybody; what you choose is left out of it.' : start) +
    (chosen.size && best.length ? ` First is ${names[best[0]]}.` : '');
  if (!list) return;
  const same = `[data-item="${item}"][data-rating="${rating}"]`;
  const row = list.children[Math.min(at, list.children.length - 1)];
  const next = list.querySelector(same) ??
    row?.querySelector('button[tabindex="0"], button:not([tabindex])');
  (next ?? find('query')).focus();
}

function focused() {
  const row = document.activeElement?.closest('li');
  const list = row?.closest('#results, #chosen, #list');
  if (!list) return {};
  return {
    list, at: [...list.children].indexOf(row), ...document.activeElement.dataset,
  };
}

document.addEventListener('click', ({target}) => {
  const button = target.closest('button[data-item]');
  if (!button) return;
  const item = Number(button.dataset.item);
  const rating = Number(button.dataset.rating);
  if (Number.isNaN(rating) || chosen.get(item) === rating) chosen.delete(item);
  else chosen.set(item, rating);
  draw();
});
document.addEventListener('keydown', (event) => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  const stars = step && event.target.closest('.stars');
  if (!stars) return;
  const next = [...stars.children].indexOf(event.target) + step;
  stars.children[next]?.focus();
  event.preventDefault();
});
find('query').addEventListener('input', search);
find('clear').addEventListener('click', () => {
  chosen.clear();
  draw();
  find('query').focus();
});
document.querySelector('label').textContent =
  `Search ${names.length} titles, and ` +
  (model.stars ? 'give stars to what you know' : 'click what you like');
draw();
