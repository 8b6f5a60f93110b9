// What the pages have beyond plain HTML: live updates, keys, local time, selection, copying. Without it all pages work.
(() => {
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const stored = (name, value) => {
    try {
      return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value);
    } catch { return null; }
  };
  const root = document.documentElement;

  // --- theme
  const showTheme = () => {
    const now = root.dataset.theme || "system";
    $$(".theme [data-theme]").forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.theme === now)));
  };
  const setTheme = (theme) => {
    if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
    stored("toril-theme", theme);
    showTheme();
  };

  // --- times: local, or UTC
  const isLocal = () => stored("toril-time") !== "utc";
  const two = (number) => String(number).padStart(2, "0");
  const showTimes = () => {
    const local = isLocal();
    $$("time[datetime]").forEach((one) => {
      if ("relative" in one.dataset) return;
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) return;
      const text = local
        ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`
        : `${one.title.slice(0, 19)} UTC`;
      if (one.textContent !== text) one.textContent = text;
    });
  };

  // --- the row of the keyboard
  let here = "";
  const rows = () => $$("tr[data-row]");
  const showHere = (scroll) => rows().forEach((row) => {
    const is = row.dataset.key === here;
    row.classList.toggle("here", is);
    if (is && scroll) row.scrollIntoView({ block: "nearest" });
  });
  const move = (step) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.dataset.key === here);
    here = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + step))].dataset.key;
    showHere(true);
  };
  const rowHere = () => rows().find((row) => row.dataset.key === here);

  // --- selection
  const picks = () => $$("input[name='id'][type='checkbox']");
  const showSelection = () => {
    const chosen = picks().filter((one) => one.checked).length;
    const bar = $("#selection-count");
    const whole = $("input[name='all'][type='checkbox']")?.checked;
    if (bar) bar.textContent = whole ? "All selected" : chosen ? `${chosen} selected` : "Nothing selected";
    $$(".selection button").forEach((one) => { one.disabled = !chosen && !whole; });
    const all = $("[data-all]");
    if (all) all.checked = chosen > 0 && chosen === picks().length;
  };

  // --- live
  const pulse = (kind, text) => {
    const one = $("#pulse");
    if (!one) return;
    one.className = `pulse js ${kind}`;
    $("span", one).textContent = text;
  };
  const isBusy = () => {
    const live = $("#live");
    if (picks().some((one) => one.checked) || $("details[data-touched]", live)) return true;
    const focus = document.activeElement;
    if (focus && live.contains(focus) && /^(INPUT|SELECT|TEXTAREA)$/.test(focus.tagName)) return true;
    return live.contains(document.getSelection()?.anchorNode ?? null) && !document.getSelection().isCollapsed;
  };
  const away = (text) => {
    const banner = $("#away");
    if (!banner) return;
    banner.hidden = !text || $("[data-away]") !== null; // the page itself says so
    $("span", banner).textContent = text || "";
  };
  document.addEventListener("htmx:before:sse:message", (event) => {
    if (event.detail.message.event) return;
    away("");
    if (isBusy()) {
      event.detail.message.cancelled = true;
      pulse("paused", "paused while you work");
    } else pulse("", "live");
  });
  document.addEventListener("away", (event) => { away(event.detail.data); pulse("lost", "no answer"); });
  document.addEventListener("htmx:after:sse:connection", () => pulse("", "live"));
  document.addEventListener("htmx:sse:error", () => { away("The dashboard does not answer."); pulse("lost", "no answer"); });
  const refreshed = () => { showTimes(); showHere(false); showSelection(); };
  document.addEventListener("htmx:after:swap", refreshed);

  // --- clicks
  const copy = async (button) => {
    const text = document.getElementById(button.dataset.copy)?.textContent ?? "";
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch { button.textContent = "Not allowed"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  document.addEventListener("click", (event) => {
    const one = event.target.closest("[data-theme],[data-copy],[data-help],[data-palette],summary");
    if (!one || one === root) return;
    if (one.tagName === "SUMMARY") one.parentElement.dataset.touched = "";
    else if (one.dataset.copy) copy(one);
    else if ("help" in one.dataset) $("#help").showModal();
    else if ("palette" in one.dataset) openPalette();
    else if (one.closest(".theme")) setTheme(one.dataset.theme);
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) picks().forEach((one) => { one.checked = event.target.checked; });
    if (event.target.id === "keys-on") stored("toril-keys", event.target.checked ? "on" : "off");
    showSelection();
  });

  // --- going to a page
  const palette = $("#palette");
  let places = null;
  const openPalette = async () => {
    palette.showModal();
    const input = $("input", palette);
    input.value = "";
    if (!places) {
      places = $$(".side li a").map((one) => [one.textContent, one.href]);
      try {
        const reply = await fetch($(".brand").href.replace(/\/?$/, "/places"), { headers: { accept: "application/json" } });
        if (reply.ok) places = places.concat(await reply.json());
      } catch { /* the pages are enough */ }
    }
    showPlaces();
  };
  const showPlaces = () => {
    const wanted = $("input", palette).value.toLowerCase();
    const list = $("ul", palette);
    list.replaceChildren(...places.filter(([name]) => name.toLowerCase().includes(wanted)).slice(0, 30).map(([name, href], at) => {
      const link = document.createElement("a");
      link.href = href;
      link.textContent = name;
      if (at === 0) link.className = "here";
      const item = document.createElement("li");
      item.append(link);
      return item;
    }));
  };
  if (palette) {
    palette.addEventListener("input", showPlaces);
    palette.addEventListener("keydown", (event) => {
      const links = $$("a", palette);
      const at = links.findIndex((one) => one.classList.contains("here"));
      if (event.key === "Enter" && at >= 0) { event.preventDefault(); location.assign(links[at].href); }
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && links.length) {
        event.preventDefault();
        links[at]?.classList.remove("here");
        const next = links[(at + step + links.length) % links.length];
        next.classList.add("here");
        next.scrollIntoView({ block: "nearest" });
      }
    });
  }

  // --- keys
  const single = {
    "/": () => $("[data-search]")?.focus(),
    "?": () => $("#help").showModal(),
    j: () => move(1),
    k: () => move(-1),
    x: () => {
      const box = $("input[name='id'][type='checkbox']", rowHere() ?? document.createElement("i"));
      if (box) { box.checked = !box.checked; showSelection(); }
    },
    Enter: () => { const link = rowHere() && $("a.name", rowHere()); if (link) location.assign(link.href); },
    r: () => $("button[name='act'][value='retry']")?.click(),
    t: () => { stored("toril-time", isLocal() ? "utc" : "local"); showTimes(); },
  };
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || stored("toril-keys") === "off") return;
    if (document.querySelector("dialog[open]") || event.target.closest("input:not([type='checkbox']),select,textarea,button,a,summary")) return;
    const act = single[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // A narrow screen has the pages in one row, which is wider than the screen.
  const current = $(".side [aria-current]");
  if (current) current.closest("ul").scrollLeft = current.offsetLeft - 40;

  const keysOn = $("#keys-on");
  if (keysOn) keysOn.checked = stored("toril-keys") !== "off";
  showTheme();
  refreshed();
})();
