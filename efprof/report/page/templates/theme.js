// Runs before the first paint: the remembered theme, or what the system prefers.
(function () {
  var remembered = null;
  try { remembered = localStorage.getItem("efprof-theme"); } catch (error) { /* storage is off: the system decides */ }
  var dark = remembered ? remembered === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
