// What a page does besides, where scripts run: parts of it follow what happens, at once or once somebody asks for it, and pause when
// somebody wants that. Everything works without.
"use strict";
const parts = document.querySelectorAll("[data-follow]");
if (parts.length) {
  const button = document.createElement("button");
  let timer = 0;
  const isLive = document.querySelector("[data-live]") !== null;
  const [begin, end] = isLive ? ["Go on", "Pause"] : ["Follow live", "Stop following"];
  const show = () => {
    button.textContent = timer ? end : begin;
    if (!isLive) button.setAttribute("aria-pressed", String(Boolean(timer)));
  };
  const load = async () => {
    if (document.hidden) {
      timer = setTimeout(load, parts[0].dataset.follow * 1000);
      return;
    }
    const answer = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
    if (!timer) return;
    if (answer && answer.status === 401) return location.reload();
    if (answer && answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelectorAll("[data-follow]");
      parts.forEach((part, index) => {
        // Not under somebody's fingers: what has the focus, or is being filled in, stays.
        if (fresh[index] && !part.contains(document.activeElement)) part.replaceChildren(...fresh[index].childNodes);
      });
    }
    timer = setTimeout(load, parts[0].dataset.follow * 1000);
  };
  button.type = "button";
  button.addEventListener("click", () => {
    if (timer) {
      clearTimeout(timer);
      timer = 0;
    } else {
      timer = setTimeout(load, 0);
    }
    show();
  });
  if (isLive) timer = setTimeout(load, parts[0].dataset.follow * 1000);
  show();
  document.getElementById("refresh")?.parentElement.remove();
  document.querySelector("h1").after(button);
}
// A job that is done step by step goes on by itself; to stop is to leave the page.
document.querySelector("form[data-goes-on]")?.requestSubmit();
