import assert from 'node:assert/strict'
import { after } from 'node:test'
import { accessible, close, cluster, flow, open, until } from './harness.mjs'

after(close)

// counts reads the table of results: for each algorithm, requests sent, admitted, refused and delayed, and the most in
// one window.
async function counts(page) {
  const rows = await page.getByRole('table', { name: 'What became of the requests' }).locator('tbody tr').all()
  const out = {}
  for (const row of rows) {
    const [sent, admitted, refused, delayed, peak] = (await row.locator('td').allInnerTexts()).map(Number)
    out[await row.locator('th').innerText()] = { sent, admitted, refused, delayed, peak }
  }
  return out
}

flow("the playground's boundary burst admits twice the limit", async (t) => {
  const { nodes: [n] } = await cluster(t)
  const page = await open(t, n, '/play', { token: '' })
  await page.getByRole('group', { name: 'Demonstrations' }).getByRole('button', { name: /^Fixed window/ }).click()
  await until('both bursts are over', async () => (await counts(page))['Fixed window']?.sent >= 20)
  const got = await counts(page)
  assert.deepEqual([got['Fixed window'].admitted, got['Fixed window'].peak], [20, 20], 'twice the limit of 10')
  for (const [name, c] of Object.entries(got)) if (/log/i.test(name)) assert.equal(c.peak, 10, `${name} holds the limit`)
  await accessible(page, 'the playground')
  assert.match(page.url(), /show=/) // the link shows the same demonstration

  // The user can go back in time, and send single requests.
  await page.getByRole('button', { name: /Back to the beginning/ }).click()
  await page.getByRole('button', { name: /^Reset/ }).click()
  await page.getByRole('button', { name: /^Burst of 10/ }).click()
  await page.getByRole('button', { name: /^Send one/ }).click()
  await until('eleven were sent', async () => (await counts(page))['Token bucket'].sent === 11)
  assert.deepEqual((await counts(page))['Token bucket'].admitted, 10)
})

// Each button starts a demonstration. A number key does the same. It shows a sentence, which is also read out, and the
// matching numbers.
flow('demonstrations show what they say', async (t) => {
  const { nodes: [n] } = await cluster(t, { nodes: 1 })
  const page = await open(t, n, '/play', { token: '' })
  await page.getByRole('table', { name: 'What became of the requests' }).waitFor()
  const said = page.locator('p.hidden[role=status]')
  for (const [key, sentence, name, want] of [
    ['1', /admitted 20 requests within 0\.8 s, twice its limit of 10 .* the sliding log, which has no edge, admitted 10/, 'Fixed window', { sent: 20, admitted: 20, refused: 0, delayed: 0, peak: 20 }],
    ['2', /10 × 50 % \+ 5 = 10 of 10, so the counter has admitted 5 since the edge/, 'Sliding counter', { sent: 21, admitted: 15, refused: 6, delayed: 0, peak: 15 }],
    ['3', /admitted 10 of 20 requests at once, and then 5 of 10, because a token comes back every 1 s/, 'Token bucket', { sent: 30, admitted: 15, refused: 15, delayed: 0, peak: 15 }],
    ['4', /Of 10 requests within 0\.1 s the queue admitted 10 and let them go one every 1 s, so the last one waited 8\.9 s/, 'Leaky queue', { sent: 10, admitted: 10, refused: 0, delayed: 9, peak: 10 }],
  ]) {
    await page.keyboard.press(key)
    await until(`what ${key} shows is said`, async () => sentence.test(await page.locator('.story.done').innerText()) && sentence.test(await said.innerText()))
    assert.deepEqual((await counts(page))[name], want)
  }
  // With the keyboard only: send eleven requests, and go back to the first.
  await page.keyboard.press('r')
  await page.keyboard.press('p')
  await page.keyboard.press('p') // stops the clock
  await page.keyboard.press('b')
  await page.keyboard.press(' ')
  await until('it is said', async () => /At [0-9.]+ s, of 11 sent: Token bucket admitted 10, refused 1; /.test(await said.innerText()))
})

// With thousands of rules that all apply, and with more rules than the engine accepts, the page shows a message and
// keeps working.
flow('rules by the thousand leave the playground usable', async (t) => {
  const { nodes: [n] } = await cluster(t, { nodes: 1 })
  const page = await open(t, n, '/play?rules=own', { token: '' })
  const rules = page.getByLabel('Rules, as YAML')
  // Simulates a paste. Playwright's fill takes half a minute in Chromium for that many lines.
  const paste = (text) => rules.evaluate((area, text) => ((area.value = text), area.dispatchEvent(new InputEvent('input', { bubbles: true }))), text)
  await paste(`rules:\n${Array.from({ length: 2000 }, (_, i) => `- {id: r${i}, limit: 1/s}\n`).join('')}`)
  await page.getByText('r199', { exact: true }).waitFor()
  for (let i = 0; i < 16; i++) await page.keyboard.press(' ')
  await page.getByText('2000 limits apply to this request, and 15 requests are the most').first().waitFor()
  assert.deepEqual((await counts(page))['All rules together'].sent, 15)
  await paste('rules:\n' + '- {id: r, limit: 1/s}\n'.repeat(200_000))
  await page.getByText('the playground takes at most 64 KiB of rules').waitFor()
  await paste('rules: [{id: only, limit: 3/minute}]')
  await page.getByText('applies', { exact: true }).waitFor()
  await page.keyboard.press('b')
  await until('a burst is decided', async () => (await counts(page))['All rules together'].admitted === 3)
})

flow('the console loads no WebAssembly, and the playground needs no token', async (t) => {
  const { nodes: [n] } = await cluster(t)
  const page = await open(t, n, '/console/')
  const loaded = []
  page.on('request', (r) => loaded.push(r.url()))
  await page.reload()
  await page.getByText('All is well').waitFor()
  assert.deepEqual(loaded.filter((url) => url.includes('wasm')), [])
  const play = await open(t, n, '/play', { token: '' })
  await play.getByRole('table', { name: 'What became of the requests' }).waitFor()
})
