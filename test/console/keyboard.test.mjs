// The console without a mouse, and with a screen reader.
import assert from 'node:assert/strict'
import { after, before } from 'node:test'
import { api, close, cluster, flow, keys, open, until } from './harness.mjs'
import { keepBusy } from './traffic.mjs'

const ends = []
let n, client

before(async () => {
  const c = await cluster({ after: (f) => ends.push(f) }, { nodes: 1 })
  n = c.nodes[0]
  const stop = new AbortController()
  const busy = keepBusy(c.nodes, stop.signal)
  ends.push(() => (stop.abort(), busy))
  await api(n, 'PUT', '/v1/rules/key?message=a%20ticket', { key: keys.vip, rule: 'search', limit: '300/minute', expires_in: '2h' })
  await api(n, 'POST', '/v1/denylist/entries', { key: 'sk_live_blocked0001' })
  await until('somebody is refused', async () => {
    const { clients } = await api(n, 'GET', '/v1/top?by=refused&k=50')
    return (client = clients.find((one) => one.kind === 'api_key'))
  })
})
after(async () => {
  for (const end of ends.reverse()) await end()
  await close()
})

const named = () => `client=${client.fingerprint}&as=${encodeURIComponent(client.client)}`
const views = () => ({
  Now: '/console/', Why: '/console/why', 'Why, of a rule': '/console/why?rule=search', 'Why, of a client': `/console/why?${named()}`, Keys: '/console/keys', Blocked: '/console/keys?show=deny',
  Overrides: '/console/keys?show=overrides', 'a key': `/console/keys/${named().slice(7).replace('&', '?')}`, Rules: '/console/rules', 'a rule': '/console/rules/search',
  document: '/console/rules?view=yaml', History: '/console/history', Tail: '/console/tail', Help: '/console/nothing',
})

async function drawn(page) {
  await page.getByRole('heading', { level: 1 }).first().waitFor()
  await until('nothing is loading any more', () => page.evaluate(() => !document.querySelector('[aria-busy=true], .loading')))
}

// watchFocus gives a page the function __focus, which describes the element with the focus, even inside shadow roots.
function watchFocus() {
  const walked = new Map()
  const parent = (e) => e.parentElement ?? e.getRootNode().host
  const element = () => {
    let e = document.activeElement
    while (e?.shadowRoot?.activeElement) e = e.shadowRoot.activeElement
    return e && e !== document.body ? e : null
  }
  // place returns an element's position in the layout. Scrolling doesn't change it, but content that grows above the
  // element does.
  const place = (e) => {
    const box = e.getBoundingClientRect()
    let [x, y] = [box.x, box.y]
    for (let p = parent(e); p; p = parent(p)) [x, y] = [x + p.scrollLeft, y + p.scrollTop]
    return [x, y, box.width, box.height].map(Math.round).join()
  }
  const look = (e) => {
    const box = e.getBoundingClientRect()
    const middle = (from, to, size) => Math.min(Math.max((from + to) / 2, 1), size - 1)
    const inSight = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth
    const top = inSight ? document.elementFromPoint(middle(box.left, box.right, innerWidth), middle(box.top, box.bottom, innerHeight)) : null
    const cover = top?.closest('.nav, th')
    const ring = [e, e.nextElementSibling, e.getRootNode().host].filter(Boolean).some((x) => {
      const s = getComputedStyle(x)
      return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2
    })
    return { ring, seen: inSight && !(cover && !cover.contains(e)) }
  }
  const frame = () => new Promise((done) => requestAnimationFrame(done))
  // settled waits until nothing is loading, and nothing moves between two frames.
  async function settled(e) {
    for (let last, same = 0; same < 2; ) {
      await frame()
      const { x, y } = e.getBoundingClientRect()
      const now = `${place(e)} ${x} ${y} ${document.querySelector('[aria-busy=true], .loading') !== null}`
      same = now === last && now.endsWith('false') ? same + 1 : 0
      last = now
    }
  }
  let placed // the position of the focused element when it got the focus
  addEventListener('focusin', () => (placed = element() && place(element())), true)
  globalThis.__focus = async () => {
    const e = element()
    if (!e) return null
    let at = look(e)
    // The browser scrolls when the focus moves, but live data may arrive later. So the test judges a page only after it
    // has settled. If the layout has moved the element since then, the test scrolls to it again, as the browser does
    // for the focus, and fails only if the element still isn't visible.
    while (!(at.ring && at.seen) && e === element()) {
      await settled(e)
      at = look(e)
      if (at.seen || place(e) === placed) break
      placed = place(e)
      e.scrollIntoViewIfNeeded()
      await settled(e)
      at = look(e)
    }
    if (e !== element()) return globalThis.__focus() // the element was removed, or the focus moved on
    if (!walked.has(e)) walked.set(e, walked.size)
    return { id: walked.get(e), says: `${e.tagName} ${e.getAttribute('aria-label') ?? e.textContent?.slice(0, 30) ?? ''}`, ...at }
  }
}

for (const width of [375, 1280]) {
  flow(`Tab goes through every view at ${width} px, is always seen, and gets out again`, async (t) => {
    const page = await open(t, n, '/console/', { width })
    await page.addInitScript(watchFocus)
    const focused = () => page.evaluate(() => globalThis.__focus())
    for (const [name, path] of Object.entries(views())) {
      await page.goto(n.admin + path)
      await drawn(page)
      await page.evaluate(() => document.activeElement?.blur())
      const stops = new Set()
      for (let i = 0; i <= 90; i++) { // a long table has very many places to stop at
        await page.keyboard.press('Tab')
        const at = await focused()
        if (i === 0) assert.match(at?.says ?? 'nothing', /Skip to the content/, `${name}: the first stop`)
        if (!at) {
          // The focus went to the browser's own controls, and returns at the top of the page. If the focused element
          // was removed, Tab would continue from its place.
          await page.keyboard.press('Tab')
          assert.equal((await focused())?.id, 0, `${name}: the focus got lost after ${i} stops`)
          break
        }
        assert.ok(at.ring, `${name}: nothing shows the focus on ${at.says}`)
        assert.ok(at.seen, `${name}: ${at.says} has the focus and isn't seen`)
        if (stops.has(at.id)) {
          assert.equal(at.id, 0, `${name}: the focus can't get out: ${at.says} again`)
          break
        }
        stops.add(at.id)
      }
      assert.ok(stops.size > 8, `${name}: only ${stops.size} stops`)
    }
  })
}

flow('each row that opens something has a link or a button for it', async (t) => {
  const page = await open(t, n, '/console/')
  for (const [name, path] of Object.entries(views())) {
    await page.goto(n.admin + path)
    await drawn(page)
    if (name === 'Tail') await page.locator('tr.opens').first().waitFor()
    const bare = await page.evaluate(() => [...document.querySelectorAll('tr.opens')].filter((r) => !r.querySelector('td a[href], td button.link')).map((r) => r.innerText))
    assert.deepEqual(bare, [], name)
  }
  await page.goto(`${n.admin}/console/keys?show=deny`)
  const entry = page.getByRole('table', { name: 'Blocked' }).locator('td').getByRole('button').first()
  await entry.focus()
  await page.keyboard.press('Enter')
  await page.waitForURL(/\/console\/keys\/[0-9a-f]{8}/)
})

flow('nothing is described by what is not there', async (t) => {
  const page = await open(t, n, '/console/')
  const missing = () => page.evaluate(() => [...document.querySelectorAll('[aria-describedby], [aria-labelledby]')].flatMap((e) => ['aria-describedby', 'aria-labelledby'].flatMap((a) => (e.getAttribute(a) ?? '').split(' ').filter((id) => id && !document.getElementById(id)).map((id) => `${e.outerHTML.slice(0, 80)}: ${id}`))))
  for (const [name, path] of Object.entries(views())) {
    await page.goto(n.admin + path)
    await drawn(page)
    assert.deepEqual(await missing(), [], name)
  }
  await page.goto(`${n.admin}/console/rules/search`)
  await page.getByRole('textbox', { name: 'Limit to try' }).fill('nonsense')
  await page.getByText('such as 50/minute').first().waitFor()
  assert.deepEqual(await missing(), [], 'a field with an error')
})

flow('a dialog gives the focus back, and keeps what was typed from a stray click', async (t) => {
  const page = await open(t, n, '/console/rules')
  await drawn(page)
  const dialog = page.getByRole('dialog')
  const opener = page.getByRole('button', { name: 'Change free' })
  const back = (how) => until(`the button has the focus again after ${how}`, () => opener.evaluate((b) => b === document.activeElement))
  const beside = () => page.mouse.click(5, 5)
  for (const [how, end] of [['Esc', () => page.keyboard.press('Escape')], ['Cancel', () => dialog.getByRole('button', { name: 'Cancel' }).click()], ['Close', () => dialog.getByRole('button', { name: 'Close' }).click()], ['a click beside it', beside]]) {
    await opener.focus()
    await page.keyboard.press('Enter')
    await dialog.waitFor()
    await end()
    await dialog.waitFor({ state: 'hidden' })
    await back(how)
  }
  await opener.click()
  await dialog.getByLabel('Limit').fill('70/minute')
  await dialog.getByLabel('Message').fill('for the fair')
  await beside()
  page.once('dialog', (asks) => asks.dismiss())
  await page.keyboard.press('Escape')
  assert.equal(await dialog.getByLabel('Message').inputValue(), 'for the fair')
  assert.equal(await dialog.getByLabel('Limit').inputValue(), '70/minute')
  page.once('dialog', (asks) => asks.accept())
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'hidden' })
  await back('Esc')

  // A dialog that is unmounted when it closes, and a button inside that says why it is disabled.
  await page.goto(`${n.admin}/console/keys?show=deny`)
  const block = page.getByRole('button', { name: 'Block…' })
  await block.click()
  await dialog.getByRole('button', { name: 'Block', exact: true }).click({ force: true }) // the button is disabled, and says why
  await dialog.getByRole('status').filter({ hasText: 'Give a key' }).waitFor()
  await page.keyboard.press('Escape')
  await dialog.waitFor({ state: 'hidden' })
  await until('the button has the focus again', () => block.evaluate((b) => b === document.activeElement))
})

flow('keys of one character can be switched off, and never fire while somebody types', async (t) => {
  const page = await open(t, n, '/console/rules')
  await drawn(page)
  await page.keyboard.press('/')
  await page.keyboard.type('gk?')
  assert.equal(await page.getByLabel('Search rules').inputValue(), 'gk?')
  await page.keyboard.press('Escape')
  for (const modifier of ['Control', 'Alt', 'Meta']) {
    await page.keyboard.press('g')
    await page.keyboard.press(`${modifier}+k`)
  }
  assert.match(page.url(), /\/console\/rules/)
  await page.keyboard.press('?')
  const dialog = page.getByRole('dialog', { name: 'Keys' })
  await dialog.waitFor()
  await page.keyboard.press('g')
  await page.keyboard.press('n')
  assert.match(page.url(), /\/console\/rules/)
  await dialog.getByLabel('Keys of one character').uncheck()
  await dialog.getByText('Go to Now').waitFor({ state: 'detached' })
  await page.keyboard.press('Escape')
  for (const key of ['g', 'n', '?', '/', 'j']) await page.keyboard.press(key)
  await page.reload()
  await drawn(page)
  for (const key of ['g', 'n', '?']) await page.keyboard.press(key)
  assert.match(page.url(), /\/console\/rules/)
  assert.ok(!(await dialog.isVisible()))
  assert.notEqual(await page.evaluate(() => document.activeElement?.tagName), 'INPUT')
  await page.getByRole('button', { name: /^Keys of the console/ }).click()
  await dialog.getByLabel('Keys of one character').check()
  await page.keyboard.press('Escape')
  await page.keyboard.press('g')
  await page.keyboard.press('n')
  await page.waitForURL(`${n.admin}/console/`)
})

flow('a tab that is hidden leaves its place at the stream, and says so', async (t) => {
  const page = await open(t, n, '/console/tail')
  const hide = (hidden) =>
    page.evaluate((hidden) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden })
      document.dispatchEvent(new Event('visibilitychange'))
    }, hidden)
  await page.getByText('Live', { exact: true }).waitFor()
  const ended = page.waitForEvent('requestfailed', (r) => r.url().includes('/v1/events'))
  await hide(true)
  await ended
  const again = page.waitForRequest((r) => r.url().includes('/v1/events'))
  await hide(false)
  await again
  await page.getByRole('status').filter({ hasText: 'while this tab was hidden' }).waitFor()
  await page.getByText('Live', { exact: true }).waitFor()
})
