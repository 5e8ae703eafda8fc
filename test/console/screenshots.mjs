// make screenshots: takes pictures of every view at three widths in both themes, into bin/screenshots, and the pictures
// of the README.
import { mkdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { api, close, cluster, keys, open } from './harness.mjs'
import { keepBusy } from './traffic.mjs'

const root = fileURLToPath(new URL('../..', import.meta.url))
const seconds = Number(process.env.SECONDS_OF_TRAFFIC ?? 120)
const ends = []
const t = { name: 'screenshots', after: (f) => ends.push(f) }

const stop = new AbortController()
const c = await cluster(t, { nodes: 3 })
const busy = keepBusy(c.nodes, stop.signal)
const [n] = c.nodes
await api(n, 'PUT', '/v1/rules/tier/pro?message=launch%20day', { limit: 1500, capacity: 300 })
await api(n, 'PUT', '/v1/rules/key?message=ticket%204711', { key: keys.vip, rule: 'search', limit: '300/minute', expires_in: '2h' })
console.log(`${seconds} s of traffic first: SECONDS_OF_TRAFFIC says how many`)
await new Promise((done) => setTimeout(done, seconds * 1000))
const { clients } = await api(n, 'GET', '/v1/top?by=refused&k=50')
const hot = clients.find((one) => one.rule === 'search')
const client = `client=${hot.fingerprint}&as=${encodeURIComponent(hot.client)}`

// Waits until the demonstration has shown that a fixed window admits twice the limit at its edge.
const demonstrated = async (page) => {
  await page.getByRole('group', { name: 'Demonstrations' }).getByRole('button').first().click()
  await page.locator('.story.done').waitFor()
}
const views = {
  now: ['/console/'], why: ['/console/why'], 'why-rule': ['/console/why?rule=search'], 'why-client': [`/console/why?${client}&method=GET&path=/v1/search`],
  keys: ['/console/keys'], key: [`/console/keys/${client.replace('client=', '').replace('&', '?')}`],
  rules: ['/console/rules'], rule: ['/console/rules/search'], 'rule-new': ['/console/rules?view=new'], document: ['/console/rules?view=yaml'],
  history: ['/console/history'], tail: ['/console/tail'], nothing: ['/console/nothing'], play: ['/play', demonstrated], 'play-own': ['/play?rules=own'],
}

const out = `${root}/bin/screenshots`
rmSync(out, { recursive: true, force: true })
mkdirSync(out, { recursive: true })

// The tables of these views are longer than the window, and draw only visible rows.
const long = new Set(['keys', 'tail'])

// settle gives charts time to draw, and live numbers time to arrive.
const settle = (page) => page.waitForTimeout(1500)

for (const theme of ['light', 'dark']) {
  for (const [width, height] of [[375, 812], [1280, 900], [1920, 1080]]) {
    const shoot = async (name, page) => {
      await settle(page)
      await page.screenshot({ path: `${out}/${name}-${width}-${theme}.png`, fullPage: !long.has(name) })
    }
    const login = await open(t, n, '/console/login', { token: '', theme, width, height })
    await shoot('login', login)
    await login.close()
    const page = await open(t, n, '/console/', { theme, width, height, allowed: [/./] })
    for (const [name, [path, ready]] of Object.entries(views)) {
      await page.goto(n.admin + path)
      await ready?.(page)
      await shoot(name, page)
    }
    await page.close()
  }
}

const pictures = `${root}/docs/pictures`
mkdirSync(pictures, { recursive: true })
let bytes = 0
for (const name of ['why-client', 'play']) {
  const [path, ready] = views[name]
  const page = await open(t, n, path, { width: 1280, height: 800, allowed: [/./] })
  await ready?.(page)
  await settle(page)
  const cdp = await page.context().newCDPSession(page)
  const { data } = await cdp.send('Page.captureScreenshot', { format: 'webp', quality: 85 })
  const file = `${pictures}/${name.replace('-client', '')}.webp`
  writeFileSync(file, Buffer.from(data, 'base64'))
  bytes += statSync(file).size
  await page.close()
}
console.log(`docs/pictures: ${Math.round(bytes / 1024)} KB`)
if (bytes > 300 * 1024) throw new Error('the pictures of the README are larger than 300 KB together')
stop.abort()
await busy
for (const f of ends.reverse()) await f()
await close()
