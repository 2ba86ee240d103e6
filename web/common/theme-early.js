// The theme that the reader has chosen, before anything is shown: a page loads it in its head, and not as a module.
try {
  const chosen = JSON.parse(localStorage.getItem("kvasir.theme"));
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* the browser keeps nothing */ }
