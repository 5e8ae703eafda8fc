// These servers report in X-Route which route handled a request. They listen on free ports, print the ports as JSON, and
// exit when their standard input closes.
"use strict";
const http = require("node:http");
const express = require("express");

// Express with its defaults ignores case and a trailing slash, and decodes parameters segment by segment.
const app = express();
const route = (name) => (req, res) => res.set("X-Route", name).end();
app.get("/login", route("login"));
app.get("/search/:q", route("search"));
app.use("/v1/", route("v1"));

// byPathname is a handler as people write it without a framework.
const byPathname = (read) => (req, res) => {
  let path;
  try {
    path = read(req.url);
  } catch {
    res.writeHead(400).end();
    return;
  }
  if (path === "/login") res.setHeader("X-Route", "login");
  else if (/^\/search\/[^/]+$/.test(path)) res.setHeader("X-Route", "search");
  else if (path.startsWith("/v1/")) res.setHeader("X-Route", "v1");
  res.end();
};
const servers = {
  express: app,
  "node URL": byPathname((url) => new URL(url, "http://upstream").pathname),
  "node URL, decoded": byPathname((url) => decodeURIComponent(new URL(url, "http://upstream").pathname)),
  "node url.parse": byPathname((url) => decodeURIComponent(require("node:url").parse(url).pathname)),
};

const ports = {};
let waiting = Object.keys(servers).length;
for (const [name, handler] of Object.entries(servers)) {
  const server = http.createServer({ keepAliveTimeout: 0 }, handler);
  server.listen(0, "127.0.0.1", () => {
    ports[name] = server.address().port;
    if (--waiting === 0) console.log(JSON.stringify(ports));
  });
}
process.stdin.on("end", () => process.exit()).resume();
