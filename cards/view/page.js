// The page: charts, then a list of rows that can be searched, filtered and sorted.

const PAGE_ROWS = 100;

function card(title, ...children) {
  return el("section", { class: "card" }, el("h2", {}, title), ...children);
}

function chip(category, hues) {
  const node = el("span", { class: "chip" }, category);
  if (hues.has(category)) node.style.setProperty("--hue", hues.get(category));
  else node.classList.add("plain");
  return node;
}

/** Text in parts [text, category or null]; parts with a category are highlighted in its colour. */
function marked(parts, hues) {
  return el("pre", { tabindex: 0 }, ...parts.map(([text, category]) => {
    if (!category) return text;
    const node = el("mark", { title: category }, text);
    if (hues.has(category)) node.style.setProperty("--hue", hues.get(category));
    return node;
  }));
}

function block(part, hues) {
  const node = el("div", { class: "block" },
    el("header", {}, part.title, el("span", { class: "chips" }, ...part.categories.map((c) => chip(c, hues)))),
    part.parts.length ? marked(part.parts, hues) : null);
  if (part.events?.length) node.append(eventList("In the session", part.events, hues));
  return node;
}

function eventList(title, events, hues) {
  return el("details", {}, el("summary", {}, title),
    ...events.map((event) => el("div", { class: event.here ? "event here" : "event" },
      el("div", { class: "who" }, event.who, event.here ? " · this" : ""),
      event.text ? marked([[event.text, null]], hues) : null)));
}

/** The details of a row, built when it is opened. */
function detail(row, hues, title = "What the teacher may see") {
  const left = el("div", {});
  const right = el("div", {});
  if (row.history.length) {
    left.append(el("details", {}, el("summary", {}, `${row.history.length} earlier turns`),
      ...row.history.map((turn) => block({ title: turn.role, categories: [], parts: [[turn.content, null]] }, hues))));
  }
  left.append(el("h3", {}, "Request"), marked([[row.prompt || "(none)", null]], hues));
  if (row.terms.length) {
    right.append(el("h3", {}, "Score terms"), bars({ bars: row.terms.map(([name, value]) => ({ name, value })) }));
  }
  right.append(el("h3", {}, "About"), el("dl", {},
    ...row.facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])));
  if (row.words.length) {
    right.append(el("h3", {}, "Reward terms"),
      el("div", { class: "chips" }, ...row.words.map((word) => el("span", { class: "chip plain" }, word))));
  }
  const node = el("div", {}, el("div", { class: "two" }, left, right));
  if (row.blocks.length) node.append(el("h3", {}, title), ...row.blocks.map((b) => block(b, hues)));
  return node;
}

/** The text that is searched: all that an opened row shows. */
function textOf(row) {
  const plain = (parts) => parts.map(([text]) => text).join("");
  return [row.prompt, row.where, row.outcome, ...row.categories, ...row.words, ...row.facts.map(([, value]) => value),
    ...row.history.map((turn) => turn.content),
    ...row.blocks.flatMap((b) => [b.title, plain(b.parts), ...(b.events || []).flatMap((e) => [e.who, e.text])])].join("\n");
}

const COLUMNS = [
  ["score", "Score", (row) => row.score],
  ["outcome", "Outcome", (row) => row.outcome],
  ["categories", "Categories", (row) => row.categories.join(" ")],
  ["prompt", "Request", (row) => row.prompt],
  ["where", "Session", (row) => row.where],
];

class List {
  constructor(view, hues) {
    Object.assign(this, { rows: view.rows, words: view.list, hues, kept: "", category: "", outcome: "", sort: view.list.sort || ["score", -1], limit: PAGE_ROWS });
    this.texts = new Map();
    this.search = el("input", { type: "search", id: "search", placeholder: "Search everything (press /)", "aria-label": "Search", oninput: () => this.restart() });
    this.switches = [["", "All"], ["yes", view.list.kept], ["no", view.list.dropped]].map(([value, name]) =>
      el("button", { type: "button", "data-value": value, onclick: () => { this.kept = value; this.restart(); } }, name));
    this.selects = {
      category: this.select("category", "Any category", (row) => row.categories),
      outcome: this.select("outcome", "Any outcome", (row) => [row.outcome]),
    };
    this.count = el("span", { class: "quiet", id: "count", role: "status" });
    this.head = el("tr", {}, ...COLUMNS.map(([key, name]) => el("th", { scope: "col", class: key === "score" ? "number" : key, "data-key": key },
      el("button", { type: "button", onclick: () => this.order(key) }, view.list.columns[key] || name))));
    this.body = el("tbody", { onkeydown: (event) => this.move(event) });
    this.more = el("button", { class: "more", type: "button", onclick: () => { this.limit += PAGE_ROWS; this.draw(); } }, "Show more");
    const tools = [this.search];
    if (view.list.dropped) tools.push(el("div", { class: "switch", role: "group", "aria-label": "Rows to list" }, ...this.switches));
    tools.push(...Object.values(this.selects).filter((select) => select.options.length > 2), this.count);
    this.node = el("section", { class: "card", id: "rows" }, el("h2", {}, view.list.title), el("p", { class: "quiet" }, view.list.shown),
      el("div", { class: "tools" }, ...tools), el("div", { class: "scroll" }, el("table", { class: view.categories.length ? null : "unsorted" }, el("thead", {}, this.head), this.body)), this.more);
  }

  select(key, any, values) {
    const names = [...new Set(this.rows.flatMap(values))].sort();
    return el("select", { id: key, "aria-label": any, onchange: (event) => { this[key] = event.target.value; this.restart(); } },
      el("option", { value: "" }, any), ...names.map((name) => el("option", { value: name }, name)));
  }

  pick(key, value) {
    this.selects[key].value = value;
    this[key] = this.selects[key].value;
    this.restart();
    this.node.scrollIntoView();
  }

  order(key) {
    this.sort = [key, this.sort[0] === key ? -this.sort[1] : key === "score" ? -1 : 1];
    this.restart();
  }

  text(row) {
    if (!this.texts.has(row)) this.texts.set(row, textOf(row).toLowerCase());
    return this.texts.get(row);
  }

  matching() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const [key, direction] = this.sort;
    const value = COLUMNS.find(([name]) => name === key)[2];
    return this.rows
      .filter((row) => (!this.kept || (this.kept === "yes") === row.kept)
        && (!this.category || row.categories.includes(this.category))
        && (!this.outcome || row.outcome === this.outcome)
        && words.every((word) => this.text(row).includes(word)))
      .map((row, place) => [value(row), place, row])
      .sort(([a, i], [b, j]) => {
        if (a === null || b === null) return (a === null) - (b === null) || i - j;
        return (a < b ? -1 : a > b ? 1 : 0) * direction || i - j;
      })
      .map(([, , row]) => row);
  }

  restart() {
    this.limit = PAGE_ROWS;
    this.draw();
  }

  draw() {
    const rows = this.matching();
    this.count.textContent = `${rows.length.toLocaleString("en")} of ${this.rows.length.toLocaleString("en")}`;
    for (const button of this.switches) button.setAttribute("aria-pressed", button.dataset.value === this.kept);
    for (const cell of this.head.children) {
      if (cell.dataset.key === this.sort[0]) cell.setAttribute("aria-sort", this.sort[1] > 0 ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
    this.body.replaceChildren(...rows.slice(0, this.limit).map((row) => this.line(row)));
    this.more.hidden = rows.length <= this.limit;
  }

  line(row) {
    const ask = el("button", { type: "button", class: "ask", "aria-expanded": "false" }, row.prompt.slice(0, 300) || "(no request)");
    const line = el("tr", { class: "row", id: `row-${row.id}` },
      el("td", { class: "number" }, short(row.score)),
      el("td", {}, el("span", { class: row.kept ? "outcome" : "outcome no" }, row.outcome)),
      el("td", { class: "of" }, el("div", { class: "chips" }, ...row.categories.map((c) => chip(c, this.hues)))),
      el("td", { class: "ask" }, ask),
      el("td", { class: "where quiet", title: row.facts[0][1] }, row.where));
    line.addEventListener("click", () => this.toggle(line, row));
    return line;
  }

  /** Open the row in the address, without search and filters. */
  follow() {
    const row = this.rows.find(({ id }) => location.hash === `#row-${id}`);
    if (!row) return;
    Object.assign(this, { kept: "", category: "", outcome: "" });
    this.search.value = "";
    for (const select of Object.values(this.selects)) select.value = "";
    this.limit = Math.max(PAGE_ROWS, this.matching().indexOf(row) + 1);
    this.draw();
    const line = document.getElementById(`row-${row.id}`);
    this.toggle(line, row);
    line.scrollIntoView();
  }

  toggle(line, row) {
    const open = line.classList.toggle("open");
    history.replaceState(null, "", open ? `#${line.id}` : location.pathname);
    line.querySelector("button.ask").setAttribute("aria-expanded", open);
    if (open) line.after(el("tr", { class: "detail" }, el("td", { colspan: COLUMNS.length }, detail(row, this.hues, this.words.blocks))));
    else line.nextElementSibling.remove();
  }

  move(event) {
    const buttons = [...this.body.querySelectorAll("button.ask")];
    const here = buttons.indexOf(document.activeElement);
    if (event.key === "Escape") {
      const line = event.target.closest("tr.detail")?.previousElementSibling || event.target.closest("tr.row.open");
      if (!line) return;
      const button = line.querySelector("button.ask");
      if (line.classList.contains("open")) button.click();
      button.focus();
    } else if (here >= 0 && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      buttons[here + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
    }
  }
}

function draw(view) {
  const hues = new Map(view.categories.map((name, i) => [name, Math.round((i * 360) / view.categories.length + 12) % 360]));
  document.getElementById("subtitle").textContent = view.subtitle;
  const page = document.getElementById("page");
  page.replaceChildren();
  if (view.review) {
    const review = new Review(view, hues);
    page.append(review.node);
    review.draw();
    document.body.dataset.ready = "yes";
    return;
  }
  const list = view.rows.length ? new List(view, hues) : null;
  const pick = (key, value) => list?.pick(key, value);
  const drawn = (group) => group.map((chart) => card(chart.title, chart.note ? el("p", { class: "quiet" }, chart.note) : null, DRAW[chart.kind](chart, pick)));
  for (const group of view.groups) {
    const cards = drawn(group);
    if (cards.length === 1) page.append(...cards);
    else if (cards.length) page.append(el("div", { class: "charts" }, ...cards));
  }
  if (list) {
    page.append(list.node);
    list.draw();
    list.follow();
    addEventListener("hashchange", () => list.follow());
  }
  if (view.folded?.length) {
    page.append(el("details", {}, el("summary", {}, `${view.folded.length} more curves`), el("div", { class: "charts" }, ...drawn(view.folded))));
  }
  for (const table of view.tables) {
    page.append(card(table.title, el("dl", {}, ...table.rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]))));
  }
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (event.key === "/" && !typing && list) {
      event.preventDefault();
      list.search.focus();
    } else if (event.key === "ArrowDown" && event.target === list?.search) {
      event.preventDefault();
      list.body.querySelector("button.ask")?.focus();
    }
  });
  document.body.dataset.ready = "yes";
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

unpack(document.getElementById("data").textContent).then(draw, (problem) => {
  document.getElementById("loading").textContent = `This browser cannot unpack the page (${problem.message}); use a current Firefox, Chrome or Safari.`;
});
