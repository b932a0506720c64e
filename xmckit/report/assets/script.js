"use strict";
(() => {
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  // -- tables: click a heading to sort, type to filter

  const keyOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v ?? cell.textContent.trim();
  };
  const empty = (key) => key === "" || key === "–" || key === "None";
  const sortBy = (table, column, descending, numeric) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, index) => ({ row, index, key: keyOf(row, column) }));
    const compare = (a, b) => numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
    rows.sort((a, b) => {
      if (empty(a.key) !== empty(b.key)) return empty(a.key) ? 1 : -1;
      const order = empty(a.key) ? 0 : compare(a.key, b.key);
      return (descending ? -order : order) || a.index - b.index;
    });
    body.append(...rows.map((entry) => entry.row));
  };
  for (const table of document.querySelectorAll("table[data-sort]")) {
    const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    headings.forEach((heading, column) => {
      const numeric = heading.classList.contains("number");
      const button = make("button", { type: "button" });
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const now = heading.getAttribute("aria-sort");
        const descending = now === "none" ? numeric : now === "ascending";
        for (const other of headings) other.setAttribute("aria-sort", "none");
        heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sortBy(table, column, descending, numeric);
      });
    });
  }

  const filterOver = (items, before) => {
    const input = make("input", { type: "search", "aria-label": "Filter", placeholder: "filter" });
    const matches = make("output", { "aria-live": "polite" });
    before.before(make("label", { class: "filter" }, input, matches));
    const texts = items.map((item) => item.textContent.toLowerCase());
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      items.forEach((item, index) => {
        const fits = words.every((word) => texts[index].includes(word));
        item.hidden = !fits;
        count += fits;
      });
      matches.textContent = words.length ? `${count} of ${items.length}` : "";
    });
  };
  for (const table of document.querySelectorAll("table[data-filter]")) {
    filterOver([...table.tBodies[0].rows], table.parentElement);
  }
  for (const list of document.querySelectorAll("div[data-filter]")) filterOver([...list.children], list);

  // -- charts: values at the pointer or by arrow keys, and buttons to save

  const tip = make("div", { class: "tip", role: "status", hidden: "" });
  document.body.append(tip);
  const centre = (mark) => {
    const box = mark.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2, box];
  };
  const show = (svg, mark) => {
    hide(svg);
    mark.classList.add("active");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const [x, , box] = centre(mark);
    const width = tip.offsetWidth, height = tip.offsetHeight;
    const left = Math.max(4, Math.min(x - width / 2, document.documentElement.clientWidth - width - 4));
    const top = box.top - height - 8 < 0 ? box.bottom + 8 : box.top - height - 8;
    tip.style.left = `${left + window.scrollX}px`;
    tip.style.top = `${top + window.scrollY}px`;
  };
  const hide = (svg) => {
    for (const mark of svg.querySelectorAll(".active")) mark.classList.remove("active");
    tip.hidden = true;
  };
  const distance = (mark, x, y) => {
    const box = mark.getBoundingClientRect();
    const dx = Math.max(box.left - x, 0, x - box.right), dy = Math.max(box.top - y, 0, y - box.bottom);
    return Math.hypot(dx, dy);
  };
  for (const svg of document.querySelectorAll("svg.chart")) {
    const marks = [...svg.querySelectorAll(".mark")];
    for (const mark of marks) {
      const title = mark.querySelector("title");
      mark.dataset.tip = title.textContent;
      title.remove();
    }
    if (!marks.length) continue;
    const nearest = (event) => {
      let best = null, least = Infinity;
      for (const mark of marks) {
        const far = distance(mark, event.clientX, event.clientY);
        if (far < least) [best, least] = [mark, far];
      }
      if (least < 40) show(svg, best); else hide(svg);
    };
    svg.addEventListener("pointermove", nearest);
    svg.addEventListener("pointerdown", nearest);
    svg.addEventListener("pointerleave", () => hide(svg));
    svg.tabIndex = 0;
    let index = -1;
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide(svg);
      if (!step) return;
      event.preventDefault();
      index = (index + step + marks.length) % marks.length;
      show(svg, marks[index]);
    });
    svg.addEventListener("blur", () => hide(svg));
  }

  const painted = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "opacity"];
  const standalone = (svg) => {
    const copy = svg.cloneNode(true);
    const parts = [svg, ...svg.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
    parts.forEach((part, index) => {
      const style = getComputedStyle(part);
      for (const name of painted) copies[index].setAttribute(name, style.getPropertyValue(name));
      copies[index].classList.remove("active");
    });
    const [, , width, height] = svg.getAttribute("viewBox").split(" ");
    const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    paper.setAttribute("width", width);
    paper.setAttribute("height", height);
    paper.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
    copy.prepend(paper);
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    return new XMLSerializer().serializeToString(copy);
  };
  const save = (url, name) => {
    const link = make("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
  };
  const saveSvg = (svg, name) => {
    const url = URL.createObjectURL(new Blob([standalone(svg)], { type: "image/svg+xml" }));
    save(url, `${name}.svg`);
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  };
  const savePng = (svg, name) => {
    const picture = new Image();
    picture.addEventListener("load", () => {
      const canvas = make("canvas", { width: picture.width * 2, height: picture.height * 2 });
      canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
      save(canvas.toDataURL("image/png"), `${name}.png`);
    });
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(svg))}`;
  };
  for (const figure of document.querySelectorAll("figure[data-name]")) {
    const svg = figure.querySelector("svg"), name = figure.dataset.name;
    const buttons = [["SVG", saveSvg], ["PNG", savePng]].map(([what, act]) => {
      const button = make("button", { type: "button", "aria-label": `Save as ${what}` }, what);
      button.addEventListener("click", () => act(svg, name));
      return button;
    });
    figure.querySelector("figcaption").append(make("span", { class: "save" }, ...buttons));
  }

  // -- open folded parts for printing

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
})();
