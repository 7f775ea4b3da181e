// Loaded into each Node of the tests' Volute, of which nothing else is changed.

// A pi mind always asks Anthropic's own address: send that to the fake model.
const { fetch, setInterval } = globalThis;
const address = "https://api.anthropic.com";
globalThis.fetch = (to, options) => {
  const url = typeof to === "string" ? to : to instanceof URL ? to.href : to.url;
  return fetch(url.startsWith(address) ? url.replace(address, process.env.ANTHROPIC_BASE_URL) : to, options);
};

// The daemon looks for due schedules each minute: SIGUSR2 makes it look now.
if (process.argv.includes("up")) {
  const minutely = [];
  globalThis.setInterval = (run, every, ...rest) => {
    if (every === 60_000) minutely.push(run);
    return setInterval(run, every, ...rest);
  };
  process.on("SIGUSR2", () => minutely.forEach((run) => run()));
}
