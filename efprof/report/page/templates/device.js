// The map of segments: one instant at a time, and what is known of the block under the pointer.
(function () {
  "use strict";
  document.querySelectorAll(".segment-map").forEach(function (map) {
    var notes = JSON.parse(map.querySelector("script").textContent);
    var views = Array.from(map.querySelectorAll(".map-view"));
    var buttons = Array.from(map.querySelectorAll(".map-switch button"));
    var box = map.querySelector(".map-told");
    var shown = null; // the rectangle that is told about

    function turnTo(place) {
      views.forEach(function (view, other) { view.hidden = other !== place; });
      buttons.forEach(function (button, other) { button.setAttribute("aria-pressed", String(other === place)); });
      hush();
    }
    function hush() {
      if (shown) shown.classList.remove("told");
      shown = null;
      box.hidden = true;
    }
    function tell(event) {
      var note = event.target.dataset && event.target.dataset.n;
      if (note === undefined) return hush();
      if (shown !== event.target) {
        hush();
        shown = event.target;
        shown.classList.add("told");
        box.textContent = notes[Number(note)];
        box.hidden = false;
      }
      var wide = document.documentElement.clientWidth, below = event.clientY + 18;
      box.style.left = Math.max(4, Math.min(event.clientX + 12, wide - box.offsetWidth - 4)) + "px";
      box.style.top = (below + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 12 : below) + "px";
    }

    buttons.forEach(function (button, place) { button.addEventListener("click", function () { turnTo(place); }); });
    if (buttons.length) {
      map.querySelector(".map-switch").hidden = false;
      turnTo(0);
    }
    map.addEventListener("pointermove", tell);
    map.addEventListener("pointerdown", tell);
    map.addEventListener("pointerleave", function (event) { if (event.pointerType === "mouse") hush(); });
    document.addEventListener("pointerdown", function (event) { if (!map.contains(event.target)) hush(); });
    document.addEventListener("keydown", function (event) { if (event.key === "Escape") hush(); });
    addEventListener("scroll", hush, { passive: true });
  });
})();
