// What a browser does not do by itself: copies, sorts and filters tables, opens the folds around a link's target, and
// unfolds everything for print. The page is complete without it. It makes no request.
(() => {
  "use strict";
  const MOST_UNFILTERED = 10;
  document.documentElement.classList.remove("still");

  // Copying

  async function copyText(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Pages opened from disk may have no clipboard: select and copy as a person would.
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
  }

  const status = document.createElement("p");
  status.className = "unseen";
  status.setAttribute("role", "status");
  document.body.append(status);

  for (const button of document.querySelectorAll("[data-copy]")) {
    const label = button.textContent;
    let timer = 0;
    button.addEventListener("click", async () => {
      await copyText(document.getElementById(button.dataset.copy).textContent + "\n");
      button.focus();
      button.textContent = "Copied";
      status.textContent = "Copied";
      clearTimeout(timer);
      timer = setTimeout(() => { button.textContent = label; status.textContent = ""; }, 1500);
    });
  }

  // Folds

  function unfoldAround(element) {
    for (let fold = element.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  }

  function openTarget() {
    const name = decodeURIComponent(location.hash.slice(1));
    const target = name && document.getElementById(name);
    if (!target) return;
    unfoldAround(target);
    const own = target.matches("section") ? target.querySelector(":scope > details.whole") : null;
    if (own) own.open = true;
    if (target.matches("tr.default")) {
      const only = target.closest("section").querySelector("input.only");
      if (only) only.checked = false;
    }
    target.scrollIntoView();
  }

  window.addEventListener("hashchange", openTarget);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    // A second click on the same link changes no hash.
    if (link && link.getAttribute("href") === location.hash) openTarget();
    const menu = document.querySelector("details.menu");
    if (menu.open && (link || !menu.contains(event.target))) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const menu = document.querySelector("details.menu");
    if (event.key === "Escape" && menu.open) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  openTarget();

  // Paper cannot unfold anything: print the sections that stand alone, or all of it, and fold back what was folded.
  let unfolded = [];
  const main = document.getElementById("main");
  const isBrief = () => main.querySelector("section.paper") && !main.classList.contains("all");
  function unfoldAll(kind = "details") {
    const folded = [...document.querySelectorAll(`main ${kind}:not([open])`)];
    for (const fold of folded) fold.open = true;
    return folded;
  }
  window.addEventListener("beforeprint", () => {
    unfolded.push(...unfoldAll(isBrief() ? ".paper > details.whole" : "details"));
  });
  window.addEventListener("afterprint", () => {
    for (const fold of unfolded) fold.open = false;
    unfolded = [];
    main.classList.remove("all");
  });
  document.querySelector("[data-print]").addEventListener("click", () => {
    main.classList.add("all");
    window.print();
  });
  document.querySelector("[data-unfold]").addEventListener("click", () => {
    unfoldAll();
    document.querySelector("details.menu").open = false;
  });

  // Tables

  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  function readKey(row, place) {
    const cell = row.cells[place];
    return cell.dataset.key === undefined ? cell.textContent.trim() : Number(cell.dataset.key);
  }

  function compareKeys(left, right) {
    const areNumbers = [typeof left === "number", typeof right === "number"];
    if (areNumbers[0] && areNumbers[1]) return left - right;
    if (areNumbers[0] !== areNumbers[1]) return areNumbers[0] ? -1 : 1;
    return collator.compare(left, right);
  }

  function sortBy(table, head, place) {
    const isDown = head.getAttribute("aria-sort") === "descending";
    const isFirst = !head.hasAttribute("aria-sort");
    const direction = isFirst ? (head.classList.contains("num") ? "descending" : "ascending") : isDown ? "ascending" : "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction);
    table.classList.add("sorted");
    const sign = direction === "descending" ? -1 : 1;
    const rows = [...table.tBodies[0].rows].map((row) => [readKey(row, place), row]);
    // What is not known, an empty cell, stays at the end in both directions.
    const isEmpty = (key) => key === "" || key === "unknown";
    rows.sort(([left], [right]) => (isEmpty(left) - isEmpty(right)) || sign * compareKeys(left, right));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function makeSortable(table) {
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      if (head.classList.contains("shape") || table.tBodies[0].rows.length < 2) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sortBy(table, head, place));
    });
  }

  function makeFilter(table) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length <= MOST_UNFILTERED) return;
    const label = document.createElement("label");
    label.className = "filter";
    const field = document.createElement("input");
    field.type = "search";
    field.autocomplete = "off";
    field.placeholder = `Filter ${rows.length} rows`;
    field.setAttribute("aria-label", `Filter the table ${table.caption.textContent}`);
    const count = document.createElement("span");
    count.className = "muted";
    count.setAttribute("role", "status");
    label.append(field, count);
    table.parentElement.before(label);
    let texts = null;
    field.addEventListener("input", () => {
      texts ??= rows.map((row) => row.textContent.toLowerCase());
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, place) => {
        row.hidden = !words.every((word) => texts[place].includes(word));
        shown += !row.hidden;
      });
      table.classList.toggle("filtered", words.length > 0);
      count.textContent = words.length ? `${shown} of ${rows.length}` : "";
    });
  }

  // A region that does not scroll needs no stop of the Tab key.
  function leaveOutOfTabOrder(region) {
    const isScrolled = region.scrollWidth > region.clientWidth || region.scrollHeight > region.clientHeight;
    region.tabIndex = isScrolled ? 0 : -1;
  }
  window.addEventListener("resize", () => {
    for (const region of document.querySelectorAll(".scroll")) if (region.clientWidth) leaveOutOfTabOrder(region);
  });

  // Only tables that are looked at get their buttons: a page has dozens, most of them folded.
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      makeSortable(target);
      makeFilter(target);
      leaveOutOfTabOrder(target.parentElement);
    }
  }, { rootMargin: "400px" });
  for (const table of document.querySelectorAll("main table")) observer.observe(table);
})();
