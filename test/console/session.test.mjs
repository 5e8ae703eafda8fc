import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { after } from 'node:test'
import { api, close, cluster, flow, open, tokens, until } from './harness.mjs'

after(close)


flow('log in, stay, log out', async (t) => {
  const { nodes: [n] } = await cluster(t)
  const page = await open(t, n, '/', { token: '', allowed: [/status of 401/] }) // the page polls every second, so it sees the session end
  await page.waitForURL(/\/console\/login/)
  const token = page.getByLabel('Token')
  await token.fill('not-a-token')
  await page.getByRole('button', { name: 'Log in' }).click()
  await page.getByText("this isn't a token of this node").waitFor()
  await token.fill(tokens.ada)
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: 'Now', level: 1 }).waitFor()
  await page.getByText('may operate').waitFor()
  const [cookie] = await page.context().cookies()
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, 'Strict', '/'])

  await page.reload()
  await page.getByText('may operate').waitFor()
  await page.goto(`${n.admin}/console/why?rule=search`) // a link leads to its view, even if the user has to log in first
  await page.context().clearCookies()
  await page.reload()
  await page.getByLabel('Token').fill(tokens.bob)
  await page.getByRole('button', { name: 'Log in' }).click()
  await page.waitForURL(`${n.admin}/console/why?rule=search`)
  await page.getByText('may read').waitFor()

  await page.getByRole('button', { name: 'Log out' }).click()
  await page.getByLabel('Token').waitFor()
  await page.goBack()
  await page.getByLabel('Token').waitFor()
})

flow('tabs share a session, and another port of the host gets nothing out of its cookie', async (t) => {
  const { nodes: [n] } = await cluster(t, { nodes: 1 })
  const stolen = []
  const set = []
  const other = createServer((r, w) => {
    stolen.push(r.headers.cookie ?? '')
    w.writeHead(200, { 'Content-Type': 'text/html', ...(set.length ? { 'Set-Cookie': set } : {}) }).end('<!doctype html><title>other</title>')
  })
  await new Promise((done) => other.listen(0, '127.0.0.1', done))
  t.after(() => other.close())
  const page = await open(t, n, '/console/login', { token: '', allowed: [/status of 401/] })
  await page.getByLabel('Token').fill(tokens.ada)
  await page.keyboard.press('Enter')
  await page.getByText('may operate').waitFor()
  const tab = await page.context().newPage()
  await tab.goto(`${n.admin}/console/rules`)
  await tab.getByText('may operate').waitFor()

  await tab.goto(`http://127.0.0.1:${other.address().port}/`)
  const name = `weir_session_${new URL(n.admin).port}`
  assert.match(stolen[0], new RegExp(`^${name}=[A-Z0-9]+$`)) // the browser sends the node's cookie to the other port, too
  for (const path of ['/v1/session', '/v1/rules', '/v1/events', '/metrics']) {
    assert.equal((await fetch(n.admin + path, { headers: { Cookie: stolen[0] } })).status, 401, path)
    assert.equal((await fetch(n.admin + path, { headers: { Cookie: stolen[0], 'Sec-Fetch-Site': 'same-origin' } })).status, 401, path)
  }
  assert.deepEqual(await tab.evaluate(() => Object.keys(localStorage)), [])

  // The attacker logs in as bob and sets bob's cookie beside the page's own, for paths whose cookies browsers send
  // first. The page keeps its own session, so nobody works in bob's session without noticing.
  const bob = await fetch(`${n.admin}/v1/session`, { method: 'POST', body: JSON.stringify({ token: tokens.bob }) })
  const foisted = bob.headers.getSetCookie()[0].split(';')[0]
  set.push(`${foisted}; Path=/v1`, `${name}=x; Path=/v1/rules`)
  await tab.reload()
  await page.reload()
  await page.getByText('may operate').waitFor()
  await page.goto(`${n.admin}/console/rules`)
  await page.getByRole('table', { name: 'Rules' }).waitFor()
  // If the foisted cookie replaces the page's own, the session ends, and the user can log in again.
  set.push(`${foisted}; Path=/; HttpOnly`)
  await tab.reload()
  await page.reload()
  await page.getByLabel('Token').fill(tokens.ada)
  await page.keyboard.press('Enter')
  await page.getByText('may operate').waitFor()

  await tab.goto(`${n.admin}/console/rules`)
  await tab.getByText('may operate').waitFor()
  await page.getByRole('button', { name: 'Log out' }).click()
  await page.getByLabel('Token').waitFor()
  assert.deepEqual(await page.evaluate(() => Object.keys(localStorage)), [])
  await tab.reload()
  await tab.getByLabel('Token').waitFor()
})

flow('a page of another site, or of another port, neither reads nor writes', async (t) => {
  const { nodes: [n] } = await cluster(t)
  const evil = createServer((_, w) => w.writeHead(200, { 'Content-Type': 'text/html' }).end('<!doctype html><title>evil</title>'))
  await new Promise((done) => evil.listen(0, '127.0.0.1', done))
  t.after(() => evil.close())
  const { port } = evil.address()
  const page = await open(t, n, '/console/', { allowed: [/./] })
  await page.getByText('may operate').waitFor()
  // To browsers, the other port is the same site, so it gets the cookie. localhost is another site.
  for (const origin of [`http://127.0.0.1:${port}`, `http://localhost:${port}`]) {
    const other = await page.context().newPage()
    await other.goto(`${origin}/`)
    const got = await other.evaluate(async (admin) => {
      const read = async (path, options) => {
        try {
          const answer = await fetch(admin + path, { credentials: 'include', ...options })
          return answer.type === 'opaque' ? '' : `${path}: ${answer.status} ${await answer.text()}`
        } catch {
          return ''
        }
      }
      const out = []
      for (const path of ['/v1/rules', '/v1/session', '/v1/nodes', '/v1/top', '/metrics', '/readyz', '/console/', '/play']) {
        out.push(await read(path), await read(path, { mode: 'no-cors' }))
      }
      const body = JSON.stringify({ entries: [] })
      for (const path of ['/v1/denylist?force=true', '/v1/allowlist?force=true']) {
        out.push(await read(path, { method: 'PUT', body }), await read(path, { method: 'PUT', body, headers: { 'Content-Type': 'application/json' } }))
      }
      for (const [path, data] of [['/v1/denylist/entries?force=true', { key: 'sk_evil' }], ['/v1/rules/rollback?force=true', { version: 1 }], ['/v1/counters/reset', { key: 'k' }], ['/v1/session', { token: 'x' }]]) {
        out.push(await read(path, { method: 'POST', mode: 'no-cors', body: JSON.stringify(data), headers: { 'Content-Type': 'text/plain' } }))
        navigator.sendBeacon(admin + path, JSON.stringify(data))
      }
      const embed = async (kind, path) => {
        const e = document.createElement(kind)
        const loads = new Promise((done) => ((e.onload = () => done(true)), (e.onerror = () => done(false)), setTimeout(() => done(false), 10_000)))
        if (kind === 'link') Object.assign(e, { rel: 'stylesheet', href: admin + path })
        else if (kind === 'object') e.data = admin + path
        else e.src = admin + path
        document.body.append(e)
        // When a frame is refused, it "loads" the browser's own error page. What matters is that it doesn't contain the
        // node's page.
        if ((await loads) && kind !== 'iframe' && kind !== 'object') out.push(`${kind} ${path} was loaded`)
      }
      const kinds = ['script', 'img', 'iframe', 'link', 'object']
      const paths = ['/v1/rules', '/v1/top', '/console/', '/play', '/console/assets/x.js']
      await Promise.all(kinds.flatMap((kind) => paths.map((path) => embed(kind, path))))
      const form = Object.assign(document.createElement('form'), { method: 'POST', action: `${admin}/v1/denylist/entries?force=true`, enctype: 'text/plain', target: 'there' })
      form.append(Object.assign(document.createElement('input'), { name: '{"key": "sk_evil', value: '"}' })) // the body is {"key": "sk_evil="}
      document.body.append(Object.assign(document.createElement('iframe'), { name: 'there' }), form)
      form.submit()
      return out.filter(Boolean)
    }, n.admin)
    assert.deepEqual(got, [], origin)
    await until('no frame shows the node', async () => {
      const titles = await Promise.all(other.frames().slice(1).map((f) => f.evaluate(() => document.body?.innerText ?? '').catch(() => '')))
      return titles.every((text) => !/rules:|Weir|"clients"/.test(text))
    })
    await other.close()
  }
  assert.equal((await api(n, 'GET', '/v1/rules/versions')).versions.length, 1)
  await page.reload()
  await page.getByText('may operate').waitFor() // the attempts didn't log the user out
})
