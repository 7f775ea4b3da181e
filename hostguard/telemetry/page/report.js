"use strict";
// Without this the page is whole, but for sorting, picking a mind, and, live, refreshing and acting.
const state = {mind: null, sort: null, open: new Set(), token: "", wait: 5000};
const byId = id => document.getElementById(id);

function pickable() {
  for (const item of document.querySelectorAll(".keys li[data-key]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.id = "key-" + item.dataset.key;
    button.append(item.lastChild);
    item.append(button);
    button.addEventListener("click", () => pick(state.mind === item.dataset.key ? null : item.dataset.key));
  }
  pick(state.mind);
}

function pick(key) {
  state.mind = key && byId("key-" + key) ? key : null;
  for (const button of document.querySelectorAll(".keys button"))
    button.setAttribute("aria-pressed", String(button.id === "key-" + state.mind));
  for (const path of document.querySelectorAll("#turns path[data-key]"))
    path.classList.toggle("off", state.mind !== null && path.dataset.key !== state.mind);
}

function sortable() {
  const heads = document.querySelectorAll("#minds thead th");
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.id = "sort-" + at;
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = state.sort && state.sort.at === at ? !state.sort.down : at > 0;
      sort({at, down});
    });
  });
  if (state.sort && heads.length) sort(state.sort);
}

function sort(order) {
  state.sort = order;
  const body = document.querySelector("#minds tbody");
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [a.cells[order.at], b.cells[order.at]];
    return "v" in x.dataset ? x.dataset.v - y.dataset.v : x.textContent.localeCompare(y.textContent);
  });
  body.append(...(order.down ? rows.reverse() : rows));
  document.querySelectorAll("#minds thead th").forEach((head, at) => {
    if (at === order.at) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function acting(within) {
  for (const button of document.querySelectorAll(within + " button[data-post]"))
    button.addEventListener("click", () => act(button.dataset.post));
}

// What a refresh brings anew.
function dress() {
  pickable();
  sortable();
  for (const details of document.querySelectorAll("details[id]")) {
    details.open = state.open.has(details.id);
    details.addEventListener("toggle", () => state.open[details.open ? "add" : "delete"](details.id));
  }
  acting("#report");
}

// -- live

function say(text) {
  if (byId("said").textContent !== text) byId("said").textContent = text;
}

async function refresh() {
  const answer = await fetch(location.href, {cache: "no-store"});
  if (!answer.ok) throw new Error("the guard answers with " + answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("report");
  const focus = document.activeElement && document.activeElement.id;
  const scrolled = [...document.querySelectorAll("#report .scroll")].map(box => box.scrollLeft);
  byId("report").replaceWith(fresh);
  dress();
  document.querySelectorAll("#report .scroll").forEach((box, at) => { box.scrollLeft = scrolled[at] || 0; });
  if (focus && byId(focus)) byId(focus).focus({preventScroll: true});
  document.title = fresh.dataset.title;
}

// One request at a time, the next some seconds after the answer, none while nobody looks.
async function follow() {
  if (!document.hidden && byId("follow").checked) {
    try {
      await refresh();
      state.wait = 5000;
      say("");
    } catch (error) {
      state.wait = Math.min(2 * state.wait, 60000);
      say("Not refreshed: " + error.message + ". Trying again in " + state.wait / 1000 + " s.");
    }
  }
  setTimeout(follow, state.wait);
}

async function act(path) {
  state.token = byId("token").value || state.token;
  try {
    const answer = await fetch(path, {method: "POST", headers: {Authorization: "Bearer " + state.token}});
    const told = await answer.json();
    if (answer.ok) await refresh();
    say(answer.ok ? "Done." : told.detail);
  } catch (error) {
    say("Not done: " + error.message);
  }
}

dress();
acting("header");
if (byId("follow")) setTimeout(follow, state.wait);
