// The review page: rows are answered one at a time, by keyboard or mouse, and saved as CSV.

class Review {
  constructor(view, hues) {
    Object.assign(this, { view, hues, rows: view.rows, at: 0, store: `pimono-sdpo review ${view.review.id}` });
    this.answers = this.load();
    this.progress = el("span", { id: "progress", role: "status" });
    this.state = el("span", { id: "state", class: "quiet" });
    this.why = el("input", { id: "why", placeholder: "Why (press w)", "aria-label": "Why", oninput: () => this.note() });
    this.buttons = [["y", "Yes (y)"], ["n", "No (n)"], ["", "Clear (u)"]].map(([value, name]) =>
      el("button", { type: "button", "data-value": value, onclick: () => this.answer(value) }, name));
    this.body = el("div", { id: "row" });
    const step = (by, name) => el("button", { type: "button", class: "step", onclick: () => this.move(by) }, name);
    this.node = el("section", { class: "card", id: "review" },
      el("p", {}, "Is this row worth training on? Yes, if the request can be understood alone, and the evidence belongs to it, "
        + "is real, and shows something that a competent agent could have done better."),
      el("div", { class: "tools" }, step(-1, "← Back"), step(1, "Next →"), this.progress,
        el("div", { class: "switch", role: "group", "aria-label": "Worth training on" }, ...this.buttons), this.why,
        el("button", { type: "button", id: "save", class: "step", onclick: () => this.save() }, "Save CSV (s)"), this.state),
      this.body);
    document.addEventListener("keydown", (event) => this.press(event));
    const open = this.rows.findIndex((row, i) => !this.answers[i].answer);
    this.at = Math.max(open, 0);
  }

  /** Answers survive a reload if the browser stores data for local files. */
  load() {
    const empty = this.rows.map(() => ({ answer: "", why: "" }));
    try {
      const stored = JSON.parse(localStorage.getItem(this.store) || "[]");
      return empty.map((blank, i) => stored[i] || blank);
    } catch (problem) {
      this.unsafe = "This browser does not store answers: save them before you close the page.";
      return empty;
    }
  }

  keep() {
    try {
      localStorage.setItem(this.store, JSON.stringify(this.answers));
    } catch (problem) {
      this.unsafe = "This browser does not store answers: save them before you close the page.";
    }
  }

  note() {
    this.answers[this.at].why = this.why.value;
    this.keep();
  }

  /** "Yes" goes to the next row, "no" first to the field for the reason. */
  answer(value) {
    this.answers[this.at].answer = value;
    this.keep();
    if (value === "y") this.move(1);
    else this.draw();
    if (value === "n") this.why.focus();
  }

  move(by) {
    this.at = Math.min(Math.max(this.at + by, 0), this.rows.length - 1);
    this.why.blur();
    this.draw();
    scrollTo(0, 0);
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key, target } = event;
    if (target === this.why) {
      if (key === "Enter") this.move(1);
      else if (key === "Escape") this.why.blur();
      return;
    }
    const actions = {
      y: () => this.answer("y"), n: () => this.answer("n"), u: () => this.answer(""), w: () => this.why.focus(),
      s: () => this.save(), ArrowRight: () => this.move(1), ArrowLeft: () => this.move(-1),
    };
    if (!Object.hasOwn(actions, key)) return;
    event.preventDefault();
    actions[key]();
  }

  csv() {
    const quote = (value) => `"${String(value).replaceAll('"', '""')}"`;
    const lines = this.rows.map(({ key: [source, session, episode], kept, outcome }, i) =>
      [source, session, episode, kept ? "yes" : "no", outcome, this.answers[i].answer, this.answers[i].why]);
    return [this.view.review.columns, ...lines].map((line) => `${line.map(quote).join(",")}\r\n`).join("");
  }

  save() {
    const address = URL.createObjectURL(new Blob([this.csv()], { type: "text/csv" }));
    el("a", { href: address, download: this.view.review.file }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
    this.state.textContent = `Saved as ${this.view.review.file} among your downloads.`;
  }

  draw() {
    const row = this.rows[this.at];
    const { answer, why } = this.answers[this.at];
    const done = this.answers.filter((one) => one.answer).length;
    this.progress.textContent = `Row ${this.at + 1} of ${this.rows.length}, ${done} answered`;
    for (const button of this.buttons) button.setAttribute("aria-pressed", button.dataset.value === answer && answer !== "");
    this.why.value = why;
    const outcome = answer ? `The filter said: ${row.outcome}. ` : "";
    this.state.textContent = outcome + (this.unsafe || "");
    const details = detail(row, this.hues);
    for (const part of details.querySelectorAll("details")) part.open = true;
    const events = row.events.length ? eventList(`All ${row.events.length} events from this request to the next`, row.events, this.hues) : null;
    this.body.replaceChildren(details, ...(events ? [events] : []));
  }
}
