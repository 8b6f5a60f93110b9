// Before the first paint: the theme, and that scripts run.
(() => {
  const root = document.documentElement;
  root.classList.add("has-js");
  try {
    const theme = localStorage.getItem("toril-theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch { /* storage is off: the system decides */ }
})();
