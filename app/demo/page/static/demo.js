"use strict";
// Regions come as markup that the server has escaped; the page's policy lets no script in them run.
const status = document.getElementById("outcome");

function show(regions) {
  for (const [id, markup] of Object.entries(regions)) {
    document.getElementById(id).innerHTML = markup;
  }
}

const events = new EventSource("/events");
events.onmessage = (event) => show(JSON.parse(event.data));
events.onerror = () => {
  status.textContent = "The demo does not answer: it has ended, or is being started.";
};

document.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const answer = await fetch(event.target.action, { method: "POST", redirect: "manual" });
    if (answer.status >= 400) status.textContent = await answer.text();
  } catch {
    events.onerror();
  }
});
