// make bench-console: how much data the console loads, how soon it is usable, and how long a keystroke takes, on a node
// with ten thousand rules that has seen a million keys.
import { api, close, cluster, open, tokens } from './harness.mjs'
import { keepBusy, manyKeys } from './traffic.mjs'

const ends = []
const t = { name: 'bench', after: (f) => ends.push(f) }
const many = Number(process.env.RULES ?? 10_000), seen = Number(process.env.KEYS ?? 1_000_000)
const document = `rules:\n${Array.from({ length: many }, (_, i) => `  - {id: rule-${i}, match: {endpoint: GET /v1/service-${i % 97}/thing-${i}}, limit: ${(i % 90) + 10}/minute}\n`).join('')}`
const c = await cluster(t, { nodes: 1, document })
const [n] = c.nodes

const kb = (b) => `${(b / 1024).toFixed(1)} KB`
const ms = (x) => `${x.toFixed(0)} ms`

// loads opens an address with an empty cache. It returns the number of bytes over the wire, and when the page was
// usable.
async function loads(path, ready, token = tokens.ada) {
  const page = await open(t, n, '/healthz', { token, allowed: [/./] })
  const cdp = await page.context().newCDPSession(page)
  await cdp.send('Network.enable')
  await cdp.send('Network.setCacheDisabled', { cacheDisabled: true })
  const urls = new Map()
  const sum = { files: 0, wasm: 0, api: 0 }
  cdp.on('Network.responseReceived', (e) => urls.set(e.requestId, e.response.url))
  cdp.on('Network.loadingFinished', (e) => {
    const { pathname } = new URL(urls.get(e.requestId) ?? 'http://x/')
    sum[pathname.endsWith('.wasm') ? 'wasm' : pathname.startsWith('/v1/') ? 'api' : 'files'] += e.encodedDataLength
  })
  const began = performance.now()
  await page.goto(n.admin + path)
  await ready(page)
  const usable = performance.now() - began
  await page.waitForTimeout(1000)
  await page.close()
  return { ...sum, usable }
}

// A view is usable when it shows its data: rows with their numbers, not only a heading.
const heading = (page) => page.getByRole('heading', { level: 1 }).first().waitFor()
const row = (table) => (page) => page.getByRole('table', { name: table }).locator('tbody tr[data-index]').first().waitFor()
const views = [
  ['login', '/console/login', (page) => page.getByLabel('Token').waitFor(), ''],
  ['Now', '/console/', (page) => page.locator('.uplot canvas').first().waitFor()],
  ['Rules', '/console/rules', row('Rules')],
  ['Keys', '/console/keys', row('Hot clients')],
  ['Why', '/console/why', (page) => page.getByRole('search', { name: 'Ask why' }).waitFor()],
  ['playground', '/play', (page) => page.locator('main[data-ready]').waitFor(), ''],
]
const stop = new AbortController()
const busy = keepBusy(c.nodes, stop.signal)
await manyKeys(n, seen)
console.log(`${many} rules, ${seen} keys seen`)
for (const [name, path, ready, token] of views) {
  const runs = []
  for (let i = 0; i < 5; i++) runs.push(await loads(path, ready, token))
  runs.sort((a, b) => a.usable - b.usable)
  const { files, wasm, api: answers } = runs[0]
  console.log(`${name.padEnd(11)} first load ${kb(files)}${wasm ? ` and ${kb(wasm)} of WebAssembly` : ''}, answers ${kb(answers)}; usable after ${ms(runs[2].usable)} (median of 5, slowest ${ms(runs[4].usable)})`)
}
for (const [name, path] of [['Rules', '/console/rules'], ['Keys', '/console/keys'], ['Why', '/console/why']]) {
  const page = await open(t, n, path, { allowed: [/./] })
  await heading(page)
  await page.waitForTimeout(2000)
  await page.keyboard.press('/')
  const field = page.locator('input:focus, textarea:focus')
  if ((await field.count()) === 0) {
    console.log(`${name}: / focuses no field`)
    continue
  }
  // Measures from the keystroke to the next painted frame, by the page's clock.
  await page.evaluate(() => {
    globalThis.took = []
    addEventListener('keydown', (e) => {
      requestAnimationFrame(() => setTimeout(() => globalThis.took.push(performance.now() - e.timeStamp)))
    }, { capture: true })
  })
  for (const letter of 'rule-4711') {
    await page.keyboard.press(letter)
    await page.waitForTimeout(150)
  }
  const took = (await page.evaluate(() => globalThis.took)).sort((a, b) => a - b)
  console.log(`${name.padEnd(11)} a keystroke is drawn after ${ms(took[took.length >> 1])}, the slowest of ${took.length} after ${ms(took.at(-1))}`)
  await page.close()
}
stop.abort()
await busy
for (const f of ends.reverse()) await f()
await close()
