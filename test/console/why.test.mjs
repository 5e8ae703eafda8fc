import assert from 'node:assert/strict'
import { after } from 'node:test'
import { accessible, api, check, close, cluster, flow, keys, open, rules, tokens, until } from './harness.mjs'

after(close)

const search = { key: keys.refused, method: 'GET', path: '/v1/search' }

// everywhere waits until all nodes answer a request with a given status.
async function everywhere(c, request, status) {
  for (const n of c.nodes) await until(`${n.http} answers ${status}`, async () => (await check(n, 1, request))[0] === status)
}

// paste pastes a key into Why.
async function paste(page, key) {
  await page.getByLabel('Key', { exact: true }).waitFor()
  await page.keyboard.press('/')
  await page.keyboard.insertText(key)
  await page.keyboard.press('Enter')
  await page.waitForURL(/client=[0-9a-f]{8}&as=sk_/)
}

flow('why a key was refused, and what to do', async (t) => {
  const c = await cluster(t, { nodes: 3 })
  const [n] = c.nodes
  await api(n, 'PUT', '/v1/rules/id/search?force=true&message=too%20many%20crawlers', { match: { endpoint: 'GET /v1/search' }, limit: '2/hour' })
  await everywhere(c, { ...search, cost: 0 }, 200)
  assert.deepEqual(await check(n, 4, search), [200, 200, 429, 429])
  const page = await open(t, n, '/console/why')
  await paste(page, keys.refused)

  const rule = page.getByRole('listitem', { name: 'Rule search' })
  await rule.getByText('Refuses').waitFor()
  await rule.getByText('0 of 2 left').waitFor()
  await rule.getByText('2/hour').first().waitFor()
  await rule.getByText(/too many crawlers/).waitFor() // who last changed the rule, and why
  await rule.getByText(/ada/).waitFor()
  await page.getByRole('listitem', { name: 'Rule quota' }).waitFor()
  await page.getByText(/rules? doesn't apply|rules don't apply/).waitFor()
  await page.getByText(/by search 2 times in the last hour/).waitFor()
  await page.getByText(/weir keys show/).first().waitFor()
  await accessible(page, 'Why')

  // A colleague who opens the same address sees the same answer.
  const other = await open(t, c.nodes[1], new URL(page.url()).pathname + new URL(page.url()).search, { token: tokens.bob })
  await other.getByRole('listitem', { name: 'Rule search' }).getByText('Refuses').waitFor()
  await other.close()

  await page.getByRole('button', { name: 'Reset the counters' }).click()
  await page.getByRole('dialog').getByRole('button', { name: /^Reset/ }).click()
  await rule.getByText('2 of 2 left').waitFor()
})

flow('a key is blocked and unblocked', async (t) => {
  const c = await cluster(t, { nodes: 3 })
  const page = await open(t, c.nodes[0], '/console/why')
  await check(c.nodes[0], 1, search)
  await paste(page, keys.refused)
  await page.getByRole('button', { name: 'Block', exact: true }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Message').fill('leaked')
  await dialog.getByLabel('Your change').waitFor()
  await dialog.getByText(/weir keys block .*-m leaked --admin 127/).waitFor()
  await accessible(page, 'the dialog')
  await dialog.getByRole('button', { name: 'Block', exact: true }).click()
  await dialog.getByText('In force on 3 of 3 nodes').waitFor()
  await dialog.getByRole('button', { name: 'Done' }).click()
  await everywhere(c, { ...search, cost: 0 }, 403)
  const { versions: [newest] } = await api(c.nodes[0], 'GET', '/v1/rules/versions')
  assert.deepEqual([newest.author, newest.message], ['ada', 'leaked'])
  await page.getByText(/such requests get 403/).waitFor()

  await page.getByRole('button', { name: 'Unblock' }).click()
  await dialog.getByRole('button', { name: 'Unblock' }).click()
  await dialog.getByRole('button', { name: 'Done' }).click()
  await everywhere(c, { ...search, cost: 0 }, 200)

  await page.getByRole('button', { name: 'Block', exact: true }).click()
  await dialog.getByRole('button', { name: 'Block', exact: true }).click()
  await everywhere(c, { ...search, cost: 0 }, 403)
  await dialog.getByRole('button', { name: 'Undo' }).click()
  await page.getByRole('dialog', { name: 'Undone' }).waitFor()
  await everywhere(c, { ...search, cost: 0 }, 200)
})

flow('an override ends when it is to', async (t) => {
  const c = await cluster(t, { nodes: 3 })
  const [n] = c.nodes
  assert.deepEqual(await check(n, 4, search), [200, 200, 200, 429])
  const page = await open(t, n, '/console/why')
  await paste(page, keys.refused)
  const rule = page.getByRole('listitem', { name: 'Rule search' })
  await rule.getByRole('button', { name: 'Override' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Limit', { exact: true }).fill('36000/hour')
  await dialog.getByLabel('Ends').selectOption({ label: 'In 15 minutes' })
  await dialog.getByLabel('Message').fill('ticket 12')
  await dialog.getByLabel('Your change').waitFor()
  await dialog.getByRole('button', { name: 'Apply the override' }).click()
  await dialog.getByRole('button', { name: 'Done' }).click()
  await rule.getByText('36000/hour').first().waitFor()
  await rule.getByText(/Override ends in 1[45] min/).waitFor()
  await everywhere(c, search, 200) // the bucket was empty, and now refills at ten tokens per second

  // An override that expires during the test: the page shows it, and then that it has expired. On a busy machine, a
  // page may learn of it too late, so the test retries.
  await until('the page shows an override that is about to end', async () => {
    await api(n, 'PUT', '/v1/rules/key?force=true', { key: keys.refused, rule: 'search', limit: '40/hour', expires_in: '4s' })
    return rule.getByText('40/hour').first().waitFor({ timeout: 4000 }).then(() => true, () => false)
  })
  await rule.getByText('3/hour').first().waitFor()
  await everywhere(c, search, 429)
})

flow('a token that may read is told why it may not write', async (t) => {
  const { nodes: [n] } = await cluster(t)
  await check(n, 5, search)
  const page = await open(t, n, '/console/why', { token: tokens.bob, allowed: [/status of 403/] })
  await paste(page, keys.refused)
  await page.getByRole('listitem', { name: 'Rule search' }).getByText('Refuses').waitFor()
  for (const name of ['Override', 'Reset the counters', 'Block', 'Allow']) {
    const button = page.getByRole('button', { name, exact: true }).first()
    assert.equal(await button.getAttribute('aria-disabled'), 'true', name)
    await button.click({ force: true })
  }
  await page.getByText('Your token may only read.').first().waitFor()
  assert.equal(await page.getByRole('dialog').count(), 0)
  // The node refuses it, too, whatever the page sends.
  const statuses = await page.evaluate(async () => {
    const headers = { 'Content-Type': 'application/json', 'X-Weir-Session': localStorage.getItem('weir-session') }
    const send = (method, path, body) => fetch(path, { method, body: JSON.stringify(body), headers }).then((r) => r.status)
    return [await send('POST', '/v1/counters/reset', { key: 'k' }), await send('PUT', '/v1/denylist?force=true', { entries: [] }), await send('PUT', '/v1/rules/tier/free', { limit: 5 })]
  })
  assert.deepEqual(statuses, [403, 403, 403])
  assert.equal((await api(n, 'GET', '/v1/rules/versions')).versions.length, 1)
})

flow('a client that is kept out says so, and is let in again', async (t) => {
  const c = await cluster(t, { nodes: 2, document: rules.replace('limit: 3/hour', 'limit: 3/hour\n    abuse: {refusals: 5/minute, cooldown: 15m}') })
  const reason = async (n) => (await api(n, 'POST', '/v1/counters', search)).reason
  await until('it is kept out, on all nodes', async () => {
    for (const n of c.nodes) await check(n, 1, search) // keeps sending
    return (await Promise.all(c.nodes.map(reason))).every((r) => r === 'cooldown')
  })
  const page = await open(t, c.nodes[1], '/console/why')
  await paste(page, keys.refused)
  await page.getByText(/search, which keeps it out.* in 1\d min/).waitFor()
  const other = await open(t, c.nodes[0], new URL(page.url()).pathname + new URL(page.url()).search, { token: tokens.bob })
  await other.getByRole('button', { name: 'Lift the cooldown' }).and(other.locator('[aria-disabled=true]')).waitFor()
  await other.getByRole('link', { name: "Open the client's page" }).click()
  await other.getByText(/It kept coming while search refused it.* in 1\d min/).waitFor()
  await other.close()

  await page.getByRole('button', { name: 'Lift the cooldown' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByText(/weir keys lift [0-9a-f]{32}/).waitFor()
  await accessible(page, 'the dialog')
  await dialog.getByRole('button', { name: 'Lift the cooldown' }).click()
  await page.getByText(/may come again\.$/).waitFor()
  await page.getByRole('listitem', { name: 'Rule search' }).getByText('0 of 3 left').waitFor()
  for (const n of c.nodes) await until('it is lifted on all nodes', async () => (await reason(n)) === 'limited')
})
