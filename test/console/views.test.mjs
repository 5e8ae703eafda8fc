// Properties that every view has, whatever it shows.
import assert from 'node:assert/strict'
import { after, before } from 'node:test'
import { accessible, api, close, cluster, flow, keys, open, until } from './harness.mjs'
import { keepBusy } from './traffic.mjs'

const ends = []
let n, client

// All of these tests share one node with traffic.
before(async () => {
  const c = await cluster({ after: (f) => ends.push(f) })
  n = c.nodes[0]
  const stop = new AbortController()
  const busy = keepBusy(c.nodes, stop.signal)
  ends.push(() => (stop.abort(), busy))
  await api(n, 'PUT', '/v1/rules/key?message=a%20ticket', { key: keys.vip, rule: 'search', limit: '300/minute', expires_in: '2h' })
  await until('somebody is refused', async () => {
    const { clients } = await api(n, 'GET', '/v1/top?by=refused&k=50')
    client = clients.find((one) => one.kind === 'api_key')
    return client
  })
})
after(async () => {
  for (const end of ends.reverse()) await end()
  await close()
})

const views = () => ({
  Now: '/console/', Why: '/console/why', 'Why, of a rule': '/console/why?rule=search', Keys: '/console/keys', Rules: '/console/rules', 'a rule': '/console/rules/search',
  History: '/console/history', Tail: '/console/tail', 'no view': '/console/nothing', playground: '/play',
  'Why, of a client': `/console/why?client=${client.fingerprint}&as=${encodeURIComponent(client.client)}`,
  'a key': `/console/keys/${client.fingerprint}?as=${encodeURIComponent(client.client)}`,
})

// drawn waits until a view shows its data, and then checks that it fits the window.
async function drawn(page, name) {
  await page.getByRole('heading', { level: 1 }).first().waitFor()
  await until('nothing is loading any more', () => page.evaluate(() => !document.querySelector('[aria-busy=true]')))
  const { scrollWidth, width } = await page.evaluate(() => ({ scrollWidth: document.documentElement.scrollWidth, width: innerWidth }))
  assert.ok(scrollWidth <= width, `${name} is ${scrollWidth} px wide in a window of ${width} px`)
}

for (const theme of ['light', 'dark']) {
  flow(`every view is accessible in ${theme}`, async (t) => {
    const login = await open(t, n, '/console/login', { token: '', theme })
    await drawn(login, 'login')
    await accessible(login, 'login')
    await login.seen.check()
    await login.close()
    const page = await open(t, n, '/console/', { theme })
    for (const [name, path] of Object.entries(views())) {
      await page.goto(n.admin + path)
      await drawn(page, name)
      await accessible(page, name)
    }
    await page.goto(`${n.admin}/console/`)
    await drawn(page, 'Now')
    await page.keyboard.press('?')
    await page.getByRole('dialog').waitFor()
    await accessible(page, 'the keys')
  })
}

flow('every view fits a page enlarged four times, a phone, and a large screen', async (t) => {
  for (const width of [320, 375, 1920]) {
    const page = await open(t, n, '/console/', { width })
    for (const [name, path] of Object.entries(views())) {
      await page.goto(n.admin + path)
      await drawn(page, name)
    }
  }
})

flow('views are reached by keys, and the theme is kept', async (t) => {
  const page = await open(t, n, '/console/')
  await drawn(page, 'Now')
  for (const [key, title, path] of [['w', 'Why', 'why'], ['k', 'Keys', 'keys'], ['r', 'Rules', 'rules'], ['h', 'History', 'history'], ['t', 'Tail', 'tail'], ['n', 'Now', '']]) {
    await page.keyboard.press('g')
    await page.keyboard.press(key)
    await page.waitForURL(`${n.admin}/console/${path}`)
    await page.getByRole('heading', { level: 1, name: title }).waitFor()
    await page.getByRole('navigation').getByRole('link', { name: title, exact: true }).and(page.locator('[aria-current=page]')).waitFor()
  }
  await page.goBack()
  await page.getByRole('heading', { level: 1, name: 'Tail' }).waitFor()
  const colour = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor)
  const light = await colour()
  const theme = page.getByRole('button', { name: /^Theme/ })
  while (!(await theme.getAttribute('aria-label'))?.startsWith('Theme: dark')) await theme.click()
  await until('it is dark', async () => (await colour()) !== light)
  await page.reload()
  await page.getByRole('button', { name: /^Theme: dark/ }).waitFor()
  assert.notEqual(await colour(), light)
})

flow('the tail shows decisions as they are made, and pauses', async (t) => {
  const page = await open(t, n, '/console/tail?outcome=refused&rule=search')
  const row = page.getByRole('table', { name: 'Decisions' }).getByRole('row').nth(1)
  await row.getByText('refused').waitFor()
  await row.getByRole('link', { name: 'search' }).waitFor()
  const all = await page.getByRole('table', { name: 'Decisions' }).innerText()
  assert.doesNotMatch(all, /allowed|quota/)
  for (const key of Object.values(keys)) assert.ok(!all.includes(key), 'keys are masked')
  await page.getByRole('button', { name: 'Pause' }).click()
  await page.getByRole('button', { name: /\d+ new/ }).waitFor()
  await page.getByRole('button', { name: /Go on/ }).first().click()
  await page.getByRole('button', { name: 'Pause' }).waitFor()
})
