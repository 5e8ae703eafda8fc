// Blocks on nodes whose rules are in a file.
import assert from 'node:assert/strict'
import { after } from 'node:test'
import { accessible, api, close, cluster, flow, node, open, until } from './harness.mjs'

after(close)

flow('a key is blocked and unblocked beside a rule file', async (t) => {
  const c = await cluster(t, { nodes: 1 })
  const n = await node(c.dir, ['--store', c.store, '--rules', 'rules.yaml', '--admin-tokens', 'tokens', '--data', 'data-file'])
  c.nodes.push(n)
  const key = 'sk_live_leaked00000000zz'
  const page = await open(t, n, '/console/keys?show=deny')
  await page.getByRole('button', { name: 'Block…' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Key, pattern or addresses').fill(key)
  await dialog.getByText('It goes on the emergency list').waitFor()
  await dialog.getByLabel('Message').fill('on a paste site')
  await dialog.getByRole('button', { name: 'Block', exact: true }).click()
  await dialog.getByText('It is on the emergency list').waitFor()
  await dialog.getByRole('button', { name: 'Done' }).click()
  const row = page.getByRole('row').filter({ hasText: 'Emergency list' })
  await row.waitFor()
  assert.match(await row.innerText(), /by ada .*on a paste site/s)
  assert.ok(!(await page.content()).includes(key), 'the key is masked')
  await accessible(page, 'the emergency list')
  // The other node applies the block, too, and says why it refuses.
  await until('the other node blocks it', async () => (await api(c.nodes[0], 'POST', '/v1/explain', { key })).emergency === true)
  await row.getByRole('button', { name: 'Unblock' }).click()
  await dialog.getByText('It comes off the emergency list').waitFor()
  await dialog.getByRole('button', { name: 'Unblock', exact: true }).click()
  await dialog.getByText('It is off the emergency list').waitFor()
  await dialog.getByRole('button', { name: 'Done' }).click()
  await until('the row is gone', async () => (await row.count()) === 0)
})
