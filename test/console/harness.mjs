// The harness of the console's tests: real nodes on a real Redis, and a browser whose pages are checked.
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { chromium, request } from 'playwright-core'

// Timeout for busy machines. Tests stop waiting as soon as they can.
export const patience = 120_000

// flow defines a test. If the test fails, flow prints what its pages show, and the errors that they logged.
export function flow(name, f) {
  test(name, { timeout: 4 * patience }, async (t) => {
    t.pages = []
    const open = () => t.pages.filter((p) => !p.isClosed())
    try {
      await f(t)
      for (const p of open()) await p.seen.check()
    } catch (e) {
      for (const p of open()) {
        const text = await p.innerText('body', { timeout: 1000 }).catch((e) => e.message)
        e.stack += `\n\nThe page ${p.url()} shows:\n${text.replaceAll(/\n+/g, '\n').slice(0, 3000)}\n${p.seen.wrong.join('\n')}\n`
        const file = `${process.env.FAILED ?? tmpdir()}/weir-console-${name.replaceAll(/\W+/g, '-')}.png`
        await p.screenshot({ path: file }).then(() => (e.stack += `See ${file}`), () => {})
      }
      throw e
    } finally {
      for (const p of open()) await p.context().close() // before the nodes end
    }
  })
}

export const tokens = { ada: 'token-of-ada-3c5e', bob: 'token-of-bob-77a1' } // ada is an operator, bob can only read

// Keys that must never appear in an address, in storage or in a Referer header.
export const keys = { refused: 'sk_live_Q7refused0000zzkq', busy: 'sk_live_B4busy000000qqmw', vip: 'sk_live_V9vip0000000wwxt' }

export const rules = `tiers:
  free: 100/minute
  pro: {limit: 1000/minute, burst: 200}
keys: {"sk_live_B*": pro}
rules:
  - id: quota            # by tier
  - id: search           # one page costs as much as a hundred others
    match: {endpoint: GET /v1/search}
    limit: 3/hour
  - id: login
    match: {endpoint: POST /login}
    by: [ip]
    limit: 5/minute
    on_store_failure: refuse
  - id: address
    by: [ip]
    limit: 50000/minute
`

const started = new Set()
process.on('exit', () => started.forEach((child) => child.kill('SIGKILL')))

function run(command, args, options) {
  const child = spawn(command, args, { stdio: ['ignore', 'ignore', 'pipe'], ...options })
  started.add(child)
  child.exited = new Promise((done) => child.once('exit', (code, signal) => (started.delete(child), done(signal ?? code))))
  return child
}

function freePort() {
  return new Promise((done, failed) => {
    const s = createServer().once('error', failed)
    s.listen(0, '127.0.0.1', () => {
      const { port } = s.address()
      s.close(() => done(port))
    })
  })
}

// startRedis starts a Redis and waits until it serves. If another process has taken the free port in the meantime, it
// tries another port.
async function startRedis(dir) {
  for (let tries = 1; ; tries++) {
    const port = await freePort()
    const redis = run('redis-server', ['--port', port, '--bind', '127.0.0.1', '--save', '', '--dir', dir], { stdio: ['ignore', 'pipe', 'ignore'] })
    const log = []
    const serving = new Promise((done) => createInterface(redis.stdout).on('line', (line) => (log.push(line), line.includes('Ready to accept connections') && done(true))))
    if (await Promise.race([serving, redis.exited.then(() => false)])) return { redis, port }
    assert.ok(tries < 5, `Redis doesn't start:\n${log.join('\n')}`)
  }
}

// cluster starts a Redis and nodes on it. They are stopped when the test ends.
export async function cluster(t, { nodes = 2, document = rules, args = [] } = {}) {
  const dir = mkdtempSync(join(tmpdir(), 'weir-console-'))
  const { redis, port } = await startRedis(dir)
  const sum = (s) => createHash('sha256').update(s).digest('hex')
  writeFileSync(join(dir, 'tokens'), `ada operate ${sum(tokens.ada)}\nbob read ${sum(tokens.bob)}\n`)
  writeFileSync(join(dir, 'rules.yaml'), document)
  const c = { dir, redis, nodes: [], store: `redis://127.0.0.1:${port}` }
  t.after(async () => {
    const ended = c.nodes.filter((n) => !n.killed && n.child.exitCode !== null)
    for (const child of [...c.nodes.map((n) => n.child), redis]) {
      child.kill('SIGKILL')
      await child.exited
    }
    rmSync(dir, { recursive: true, force: true })
    for (const n of c.nodes) {
      assert.ok(!ended.includes(n) && !n.log.some((line) => /DATA RACE|^panic:|"level":"ERROR"/.test(line)), `a node went wrong:\n${n.log.slice(-60).join('\n')}`)
    }
  })
  for (let i = 0; i < nodes; i++) {
    c.nodes.push(await node(dir, ['--store', c.store, '--seed-rules', 'rules.yaml', '--admin-tokens', 'tokens', '--data', `data${i}`, ...args]))
  }
  // Nodes learn of each other, and of the secret behind fingerprints, with a heartbeat. Until then, each node has a
  // secret of its own.
  await until('all nodes are heard', async () => (await Promise.all(c.nodes.map((n) => api(n, 'GET', '/v1/nodes')))).every((heard) => heard.nodes.length === nodes))
  await until('a client has one name on all nodes', async () => {
    const names = await Promise.all(c.nodes.map((n) => api(n, 'POST', '/v1/clients', { key: 'sk_any' })))
    return new Set(names.map((one) => one.fingerprint)).size === 1
  })
  return c
}

// node starts a node, and waits until it serves.
export async function node(dir, args) {
  const child = run(process.env.WEIR, ['serve', '--http', '127.0.0.1:0', '--admin', '127.0.0.1:0', '--grpc', '', '--log-format', 'json', ...args], { cwd: dir })
  const n = { child, log: [], kill: () => ((n.killed = true), child.kill('SIGKILL')) }
  const serving = new Promise((done, failed) => {
    createInterface(child.stderr).on('line', (line) => {
      n.log.push(line)
      if (line.includes('"msg":"serving"')) done(JSON.parse(line))
    })
    child.exited.then((how) => failed(new Error(`the node ended (${how}):\n${n.log.join('\n')}`)))
  })
  serving.catch(() => {}) // it may exit later, on purpose
  const { http, admin } = await serving
  return Object.assign(n, { http, admin })
}

// api sends a request to a node's admin API with ada's token, and returns the JSON.
export async function api(n, method, path, body) {
  const answer = await fetch(n.admin + path, {
    method,
    headers: { Authorization: `Bearer ${tokens.ada}`, 'Content-Type': 'application/json', Accept: 'application/json' },
    body: body && JSON.stringify(body),
  })
  const text = await answer.text()
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`)
  return JSON.parse(text)
}

// check sends requests to a node's check API, and returns their statuses.
export async function check(n, times, request) {
  const statuses = []
  for (let i = 0; i < times; i++) {
    const answer = await fetch(`${n.http}/v1/check`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(request) })
    statuses.push(answer.status)
    await answer.arrayBuffer()
  }
  return statuses
}

// until waits until a condition holds. It retries as long as the condition throws or returns false.
export async function until(what, holds) {
  let last
  for (const end = Date.now() + patience; Date.now() < end; await sleep(50)) {
    try {
      if (await holds()) return
      last = undefined
    } catch (e) {
      last = e
    }
  }
  assert.fail(`not so after ${patience / 1000} s: ${what}${last ? `: ${last.message}` : ''}`)
}

let launched

// installed returns the path of this machine's browser, as make chromium finds it.
function installed() {
  const names = process.env.CHROMIUM ? [process.env.CHROMIUM] : ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable']
  try {
    return execFileSync('sh', ['-c', 'for b; do command -v "$b" && exit; done; exit 1', 'sh', ...names], { encoding: 'utf8' }).trim()
  } catch {
    throw new Error(`there is no ${names.join(', no ')}: make chromium installs one, and CHROMIUM names another`)
  }
}

async function browser() {
  launched ??= launch(3)
  return launched
}

// launch starts a browser. On a busy machine, a browser may crash at the start, so launch retries.
async function launch(tries) {
  try {
    return await chromium.launch({ executablePath: installed(), args: ['--disable-gpu', '--disable-dev-shm-usage'] })
  } catch (err) {
    if (tries <= 1 || !/has been closed/.test(err.message)) throw err
    return launch(tries - 1)
  }
}

export async function close() {
  await (await launched)?.close()
}

const axe = readFileSync(fileURLToPath(import.meta.resolve('axe-core/axe.min.js')), 'utf8')

// Seen records a page's errors and violations. The test checks them at its end.
class Seen {
  wrong = []
  constructor(page, origin, allowed) {
    this.page = page
    const url = (u, what) => {
      if (!u.startsWith(`${origin}/`) && !/^(blob|data|about):/.test(u)) this.wrong.push(`${what} to another host: ${u}`)
      for (const key of Object.values(keys)) if (decodeURIComponent(u).includes(key)) this.wrong.push(`a key in the address of a ${what}: ${u}`)
    }
    page.on('console', (m) => {
      const text = `${m.text()} ${m.location().url}`
      if (m.type() === 'error' && !allowed.some((a) => a.test(text))) this.wrong.push(`console: ${text}`)
    })
    page.on('pageerror', (e) => this.wrong.push(`uncaught: ${e.stack}`))
    page.on('framenavigated', (f) => url(f.url(), 'navigation'))
    page.on('request', (r) => {
      url(r.url(), 'request')
      if (r.headers().referer) this.wrong.push(`a referrer in the request ${r.url()}: ${r.headers().referer}`)
    })
  }

  // check fails if the page has ever done something wrong.
  async check() {
    const cdp = await this.page.context().newCDPSession(this.page)
    const { entries } = await cdp.send('Page.getNavigationHistory')
    const kept = await this.page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, history.state, document.cookie, document.title]))
    for (const key of Object.values(keys)) {
      for (const e of entries) if (decodeURIComponent(e.url).includes(key)) this.wrong.push(`a key in the history: ${e.url}`)
      if (kept.includes(key)) this.wrong.push(`a key is kept in the browser: ${kept}`)
    }
    for (const token of Object.values(tokens)) if (kept.includes(token)) this.wrong.push(`a token is kept in the browser: ${kept}`)
    assert.deepEqual(this.wrong, [])
  }
}

// Responses that a page is expected to get before the login.
const unauthorized = /status of 401 .*\/v1\/session$/

// loggedIn returns the state that a browser has after a login.
async function loggedIn(n, token) {
  const client = await request.newContext()
  const answer = await client.post(`${n.admin}/v1/session`, { data: { token } })
  assert.equal(answer.status(), 200, await answer.text())
  const { proof } = await answer.json()
  const { cookies } = await client.storageState()
  await client.dispose()
  return { cookies, origins: [{ origin: n.admin, localStorage: [{ name: 'weir-session', value: proof }] }] }
}

// open opens an address of a node in a new browser context. The page is watched until the end of the flow. allowed
// lists patterns of console errors that are expected.
export async function open(t, n, path, { token = tokens.ada, theme = 'light', width = 1280, height = 900, allowed = [] } = {}) {
  const storageState = token ? await loggedIn(n, token) : undefined
  const context = await (await browser()).newContext({ viewport: { width, height }, colorScheme: theme, reducedMotion: 'reduce', storageState })
  context.setDefaultTimeout(patience)
  await context.addInitScript(() => {
    addEventListener('securitypolicyviolation', (e) => console.error(`policy violated: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`))
  })
  const page = await context.newPage()
  page.seen = new Seen(page, n.admin, [unauthorized, ...allowed])
  t.pages?.push(page)
  await page.goto(n.admin + path)
  return page
}

// accessible fails if axe finds serious violations.
export async function accessible(page, what) {
  await page.evaluate(axe)
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }))
  const serious = violations.filter((v) => v.impact === 'serious' || v.impact === 'critical')
  assert.deepEqual(serious.map((v) => `${what}: ${v.id}: ${v.help}: ${v.nodes.map((n) => n.html).join('\n')}`), [])
}
