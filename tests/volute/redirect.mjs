// A pi mind always asks Anthropic's own address: send that to the fake model.
const { fetch } = globalThis;
const address = "https://api.anthropic.com";
globalThis.fetch = (to, options) => {
  const url = typeof to === "string" ? to : to instanceof URL ? to.href : to.url;
  return fetch(url.startsWith(address) ? url.replace(address, process.env.ANTHROPIC_BASE_URL) : to, options);
};
