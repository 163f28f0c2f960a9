// Theme, copy buttons, and pictures that become interactive when they come near the screen.
(function () {
  "use strict";
  var root = document.documentElement;
  var holders = Array.from(document.querySelectorAll(".picture .interactive"));
  var plotly = null; // a promise of the library, once the first picture needs it

  // ---- theme ----
  var toggle = document.getElementById("theme");
  function nameTheme() {
    var other = root.dataset.theme === "dark" ? "light" : "dark";
    toggle.textContent = other === "dark" ? "Dark" : "Light";
    toggle.setAttribute("aria-label", "Switch to the " + other + " theme");
  }
  toggle.addEventListener("click", function () {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("efprof-theme", root.dataset.theme); } catch (error) { /* not remembered */ }
    nameTheme();
    holders.forEach(function (holder) { if (holder.dataset.drawn) draw(holder); });
  });
  nameTheme();

  // ---- copying ----
  function copyText(text) {
    if (navigator.clipboard && window.isSecureContext) {
      return navigator.clipboard.writeText(text).catch(function () { copyBySelection(text); });
    }
    return new Promise(function (done) { copyBySelection(text); done(); });
  }
  function copyBySelection(text) {
    var area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.appendChild(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  document.querySelectorAll("button[data-copy], #copy-link").forEach(function (button) {
    var label = button.textContent;
    button.addEventListener("click", function () {
      copyText(button.id === "copy-link" ? location.href : button.dataset.copy).then(function () {
        button.textContent = "Copied";
        document.getElementById("said").textContent = "Copied to the clipboard";
        setTimeout(function () { button.textContent = label; }, 1600);
      });
    });
  });

  // ---- pictures ----
  function inflate(text) {
    var bytes = Uint8Array.from(atob(text), function (letter) { return letter.charCodeAt(0); });
    var stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }
  function loadPlotly() {
    if (!plotly) {
      plotly = inflate(document.getElementById("plotly").textContent).then(function (source) {
        var script = document.createElement("script");
        script.textContent = source;
        document.head.appendChild(script);
        return window.Plotly;
      });
    }
    return plotly;
  }
  function resolveColours(value, style) {
    if (Array.isArray(value)) return value.map(function (item) { return resolveColours(item, style); });
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (key) { copy[key] = resolveColours(value[key], style); });
      return copy;
    }
    var named = typeof value === "string" && /^var\((--[a-z-]+)\)([0-9a-f]{2})?$/.exec(value);
    return named ? style.getPropertyValue(named[1]).trim() + (named[2] || "") : value;
  }
  function draw(holder) {
    return loadPlotly().then(function (library) {
      var figure = JSON.parse(document.getElementById(holder.dataset.figure).textContent);
      var shown = resolveColours(figure, getComputedStyle(root));
      if (matchMedia("(pointer: coarse), (max-width: 600px)").matches) shown.layout.dragmode = false;
      if (matchMedia("print").matches) shown.layout.width = 680; // an A4 page's text
      var settings = { responsive: true, displaylogo: false, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] };
      holder.dataset.drawn = "yes";
      return library.react(holder, shown.data, shown.layout, settings);
    }).catch(function () { holder.textContent = "This browser is too old to draw the picture."; });
  }
  // Whoever scrolls fast finds the others drawn too: one whenever the browser has nothing else to do.
  function drawWhenIdle(rest) {
    var whenIdle = window.requestIdleCallback || function (call) { setTimeout(call, 200); };
    rest = rest.filter(function (holder) { return !holder.dataset.drawn && !holder.closest("details:not([open])"); });
    if (rest.length) whenIdle(function () { draw(rest[0]).then(function () { drawWhenIdle(rest.slice(1)); }); }, { timeout: 300 });
  }
  if ("IntersectionObserver" in window && "DecompressionStream" in window) {
    var observer = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        if (!entry.isIntersecting) return;
        observer.unobserve(entry.target);
        draw(entry.target);
      });
    }, { rootMargin: "100%" });
    holders.forEach(function (holder) { observer.observe(holder); });
    addEventListener("load", function () { drawWhenIdle(holders); });
    // On paper colours are those of the light theme, and what is collapsed is shown.
    matchMedia("print").addEventListener("change", function (media) {
      holders.forEach(function (holder) {
        draw(holder).then(function () {
          if (media.matches) return;
          if (holder.offsetParent) return window.Plotly.Plots.resize(holder);
          window.Plotly.purge(holder); // of what is collapsed again, nobody knows the width
          observer.observe(holder);
        });
      });
    });
  }

  // ---- printing shows what is collapsed; a link to something collapsed opens it ----
  var opened = [];
  addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    opened.forEach(function (details) { details.open = true; });
  });
  addEventListener("afterprint", function () {
    opened.forEach(function (details) { details.open = false; });
  });
  function openTarget() {
    var target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (var at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView();
  }
  addEventListener("hashchange", openTarget);
  openTarget();
})();

// A bar too narrow for its words says them above its picture. With the focus on it, arrows go from bar to bar.
for (const figure of document.querySelectorAll(".intervals")) {
  const note = figure.querySelector(".interval-note");
  const tracks = [...figure.querySelectorAll(".interval-track")].map((track) => [...track.children]);
  const choose = (bar) => {
    if (!bar) return;
    figure.querySelector(".chosen")?.classList.remove("chosen");
    bar.classList.add("chosen");
    note.textContent = bar.title;
  };
  const below = (bar, row) => {
    const box = (one) => one.getBoundingClientRect();
    const middle = (box(bar).left + box(bar).right) / 2;
    return (tracks[row] || []).find((other) => box(other).right > middle) || (tracks[row] || []).at(-1);
  };
  const moved = (bar, key) => {
    if (!bar) return tracks[0]?.[0];
    const row = tracks.findIndex((bars) => bars.includes(bar));
    return { ArrowLeft: bar.previousElementSibling, ArrowRight: bar.nextElementSibling,
             ArrowUp: below(bar, row - 1), ArrowDown: below(bar, row + 1) }[key];
  };
  figure.addEventListener("mouseover", (event) => choose(event.target.closest("i[title]")));
  figure.addEventListener("click", (event) => choose(event.target.closest("i[title]")));
  figure.addEventListener("keydown", (event) => {
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    choose(moved(figure.querySelector(".chosen"), event.key));
  });
}
