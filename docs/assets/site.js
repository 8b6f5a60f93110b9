// Wide tables scroll inside their frame. The theme adds the frames later; with this, the keyboard reaches them.
new MutationObserver(() => {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    frame.tabIndex = 0;
    frame.setAttribute("role", "region");
    frame.setAttribute("aria-label", "Table");
  }
}).observe(document.body, { childList: true, subtree: true });
