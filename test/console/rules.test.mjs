import assert from 'node:assert/strict'
import { after } from 'node:test'
import { accessible, api, check, close, cluster, flow, keys, open, tokens, until } from './harness.mjs'

after(close)

// limitOn returns a limit that a node applies to a request.
async function limitOn(n, request, rule) {
  const answer = await fetch(`${n.http}/v1/check`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ ...request, cost: 0 }) })
  return (await answer.json()).limits.find((l) => l.rule === rule)?.limit
}

async function everywhere(c, request, rule, limit) {
  for (const n of c.nodes) await until(`${rule} is ${limit} on ${n.http}`, async () => (await limitOn(n, request, rule)) === limit)
}

flow("a tier's limit is changed, seen in force on three nodes, and rolled back", async (t) => {
  const c = await cluster(t, { nodes: 3 })
  const [n] = c.nodes
  const free = { key: keys.vip, method: 'GET', path: '/v1/orders' }
  await everywhere(c, free, 'quota', 100)
  const page = await open(t, n, '/console/rules')
  await page.getByRole('button', { name: 'Change free' }).click()
  let dialog = page.getByRole('dialog')
  await dialog.getByLabel('Limit').fill('250/minute')
  const diff = dialog.getByLabel('Your change')
  await diff.getByText('free: 100/minute').waitFor()
  await diff.getByText('free: 250/minute').waitFor()
  await accessible(page, 'the review')
  await everywhere(c, free, 'quota', 100) // no change is in force before it is applied
  await dialog.getByLabel('Message').fill('more for everybody')
  await dialog.getByRole('button', { name: 'Apply' }).click()
  dialog = page.getByRole('dialog', { name: 'Applied' })
  await dialog.getByText(/all 3 nodes|3 of 3 nodes/i).waitFor()
  await everywhere(c, free, 'quota', 250)
  await dialog.getByRole('button', { name: 'Done' }).click()
  await until('no dialog is open', async () => (await page.getByRole('dialog').count()) === 0)

  await page.keyboard.press('g')
  await page.keyboard.press('h')
  const versions = page.getByRole('table', { name: 'Versions' })
  await versions.getByText('more for everybody').waitFor()
  await versions.getByText('ada').first().waitFor()
  await page.getByLabel('From version 1 to 2').getByText('free: 250/minute').waitFor()
  await versions.getByRole('link', { name: '1', exact: true }).click()
  await page.getByRole('button', { name: 'Roll back to this' }).click()
  dialog = page.getByRole('dialog')
  await dialog.getByLabel('Your change').getByText('free: 100/minute').waitFor()
  // Restoring the version cuts the limit by more than half, so the node asks the user to confirm it.
  const sure = dialog.getByLabel('I have read this, and mean it')
  if (await sure.isVisible()) await sure.check()
  await dialog.getByRole('button', { name: 'Roll back' }).click()
  await page.getByRole('dialog', { name: 'Applied' }).waitFor()
  await everywhere(c, free, 'quota', 100)
  const { versions: all } = await api(n, 'GET', '/v1/rules/versions')
  assert.deepEqual([all.length, all[0].author], [3, 'ada'])
})

flow('a bad rule is shown at its place, and nothing of it is in force', async (t) => {
  const c = await cluster(t)
  const [n] = c.nodes
  const page = await open(t, n, '/console/rules/search')
  const yaml = page.getByLabel('YAML of the rule')
  await yaml.getByText('3/hour').waitFor()
  await page.getByLabel('Limit', { exact: true }).first().fill('0/hour') // the form changes the text
  await yaml.getByText('0/hour').waitFor()
  const marks = page.getByRole('button', { name: /^Line \d+/ })
  await marks.filter({ hasText: /must be at least 1/ }).waitFor()
  await page.getByRole('status').getByText('1 problem').waitFor()
  assert.equal(await page.getByRole('button', { name: 'Review change' }).getAttribute('aria-disabled'), 'true')
  await accessible(page, 'a bad rule')
  const line = Number(/Line (\d+)/.exec(await marks.first().innerText())[1])
  const lines = (await yaml.innerText()).split('\n')
  assert.match(lines[line - 1], /0\/hour/, 'the line that it names is the one that is wrong')

  await page.goto(`${n.admin}/console/rules?view=yaml`)
  const whole = page.getByLabel('YAML of the rules')
  await whole.getByText('search').first().waitFor()
  await whole.click()
  await page.keyboard.press('Control+End')
  await page.keyboard.insertText('  - {id: broken, limt: 5/minute}\n')
  await page.getByRole('button', { name: /^Line 18.*limt/ }).waitFor()
  assert.equal((await api(n, 'GET', '/v1/rules/versions')).versions.length, 1)
})

flow('what another limit would have refused, and a candidate', async (t) => {
  const c = await cluster(t)
  const [n] = c.nodes
  const orders = { key: keys.busy, method: 'GET', path: '/v1/orders' }
  await check(n, 40, orders)
  const page = await open(t, n, '/console/rules/quota')
  const limit = page.getByRole('textbox', { name: 'Limit to try' })
  // The rule has no limit of its own, so the page starts with the limit of the first tier.
  await until('the limit to try is the one in force', async () => (await limit.inputValue()) === '100/minute')
  await limit.fill('10/hour')
  // The hour is recorded in slots of ten seconds.
  await page.getByText(/At 10\/hour, 1 of 1 key would have been refused in the last hour: \d+ of 40 requests/).waitFor()
  await page.getByRole('table', { name: 'Clients that would be refused' }).getByText(/^sk_/).waitFor()
  await page.getByText(/weir rules whatif quota/).waitFor()
  await page.getByRole('button', { name: 'Run as candidate' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Your change').getByText(/candidate/).first().waitFor()
  const sure = dialog.getByLabel('I have read this, and mean it')
  if (await sure.isVisible()) await sure.check()
  await dialog.getByRole('button', { name: 'Apply' }).click()
  await page.getByRole('dialog', { name: 'Applied' }).getByRole('button', { name: 'Done' }).click()
  await page.getByText(/The candidate 10\/hour runs beside the limit in force and refuses nobody/).waitFor()
  assert.ok((await check(n, 30, orders)).every((status) => status === 200))
  await until('the candidate would have refused some', async () => {
    const { rules } = await api(n, 'GET', '/v1/rules/usage')
    return rules.find((r) => r.rule === 'quota').would_refuse > 0
  })
})

flow('rules are found, and a token that may read changes none', async (t) => {
  const { nodes: [n] } = await cluster(t)
  const page = await open(t, n, '/console/rules', { token: tokens.bob })
  assert.equal(await page.getByRole('button', { name: 'New rule' }).getAttribute('aria-disabled'), 'true')
  const table = page.getByRole('table', { name: 'Rules' })
  await table.getByRole('link', { name: 'address' }).waitFor()
  await page.keyboard.press('/')
  await page.keyboard.type('sea')
  await until('one rule is listed', async () => (await table.getByRole('row').count()) === 2)
  await table.getByRole('link', { name: 'search' }).click()
  await page.waitForURL(`${n.admin}/console/rules/search`)
  await page.getByLabel('Limit', { exact: true }).first().fill('30/hour')
  const review = page.getByRole('button', { name: 'Review change' })
  await until('it says why', async () => /may only read/.test(await review.getAttribute('title')))
  assert.equal(await review.getAttribute('aria-disabled'), 'true')
})
