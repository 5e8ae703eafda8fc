// Changes of the rules that collide with somebody else's change, the end of a session, or a user's mistake.
import assert from 'node:assert/strict'
import { after } from 'node:test'
import { api, check, close, cluster, flow, keys, open, tokens, until } from './harness.mjs'

after(close)

const textOf = async (n) => (await api(n, 'GET', '/v1/rules/versions/' + (await api(n, 'GET', '/v1/rules/versions')).versions[0].version)).text

// asked opens Why for a key, and goes to one of the rules that apply.
async function asked(page, key, rule) {
  await page.getByLabel('Key', { exact: true }).fill(key)
  await page.keyboard.press('Enter')
  await page.waitForURL(/client=[0-9a-f]{8}/)
  return page.getByRole('listitem', { name: `Rule ${rule}` })
}

flow('of several limits the one that binds is raised, and undone as it was', async (t) => {
  const { nodes: [n] } = await cluster(t)
  await api(n, 'PUT', '/v1/rules/id/two?force=true', { limits: ['100/second', '3/hour', '500/day'], override: { [keys.vip]: { limits: ['7/second', '70/hour'] } } })
  await until('the third is the last', async () => (await check(n, 4, { key: keys.refused })).join() === '200,200,200,429')
  const before = await textOf(n)
  const page = await open(t, n, '/console/why')
  const rule = await asked(page, keys.refused, 'two')
  const dialog = page.getByRole('dialog')
  await rule.getByRole('button', { name: 'Raise the limit' }).click()
  assert.equal(await dialog.getByLabel('Limit', { exact: true }).inputValue(), '6/hour')
  await dialog.getByLabel('Limit to raise').selectOption('500/day')
  assert.equal(await dialog.getByLabel('Limit', { exact: true }).inputValue(), '1000/day')
  await dialog.getByLabel('Limit to raise').selectOption('3/hour')
  await dialog.getByLabel('Your change').getByText('6/hour').waitFor()
  assert.ok(!(await dialog.getByLabel('The command that does the same').innerText()).includes(keys.vip), 'a key in a command')
  await dialog.getByRole('button', { name: 'Apply the limit' }).click()
  await dialog.getByRole('button', { name: 'Undo' }).waitFor()
  assert.equal(await textOf(n), before.replace('100/second, 3/hour', '100/second, 6/hour'))
  await dialog.getByRole('button', { name: 'Undo' }).click()
  await page.getByRole('dialog', { name: 'Undone' }).waitFor()
  assert.equal(await textOf(n), before)
  await dialog.getByRole('button', { name: 'Done' }).click()

  await rule.getByRole('button', { name: 'Override' }).click()
  await dialog.getByText('It takes the place of all 3 limits of two').waitFor()
  assert.equal(await dialog.getByLabel('Limit', { exact: true }).inputValue(), '6/hour')
  // Pressing Esc by mistake doesn't discard typed text.
  await dialog.getByLabel('Limit', { exact: true }).fill('60/hour')
  await page.mouse.click(3, 3)
  await page.keyboard.press('Escape') // the harness answers no to the browser's question
  assert.equal(await dialog.getByLabel('Limit', { exact: true }).inputValue(), '60/hour')
  await dialog.getByRole('button', { name: 'Cancel' }).click()

  // Undo restores an override with several limits.
  await page.goto(`${n.admin}/console/keys?show=overrides`)
  await page.getByRole('row').filter({ hasText: 'two' }).getByRole('button', { name: 'Remove' }).click()
  await dialog.getByRole('button', { name: 'Remove the override' }).click()
  await dialog.getByRole('button', { name: 'Undo' }).click()
  await page.getByRole('dialog', { name: 'Undone' }).waitFor()
  assert.equal(await textOf(n), before)
})

flow('two operators who change the rules at once are told', async (t) => {
  const { nodes: [n] } = await cluster(t)
  const page = await open(t, n, '/console/rules/search', { allowed: [/status of 412/] })
  await page.getByLabel('Limit', { exact: true }).first().fill('4/hour')
  await page.getByRole('button', { name: 'Review change' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Message').fill('one more')
  await dialog.getByLabel('Your change').getByText('4/hour').waitFor()
  await api(n, 'PUT', '/v1/rules/tier/free?force=true', { limit: 120 })
  await dialog.getByRole('button', { name: 'Apply' }).click()
  await dialog.getByText('ada changed the rules meanwhile').waitFor()
  await dialog.getByLabel('Their change').getByText('120/minute').waitFor()
  assert.equal(await dialog.getByLabel('Message').inputValue(), 'one more')
  await dialog.getByRole('button', { name: 'Apply' }).click()
  await page.getByRole('dialog', { name: 'Applied' }).waitFor()
  // Undo doesn't revert a later change by somebody else.
  await api(n, 'PUT', '/v1/rules/tier/free?force=true', { limit: 130 })
  await dialog.getByRole('button', { name: 'Undo' }).click()
  await dialog.getByText('Somebody else has changed the rules since').waitFor()
  await dialog.getByRole('button', { name: 'Done' }).click()
  assert.match(await textOf(n), /free: 130\/minute[^]*limit: 4\/hour/)

  // Restoring a version would undo another user's concurrent change, so the user has to confirm it.
  await page.goto(`${n.admin}/console/history?to=1`)
  await page.getByRole('button', { name: 'Roll back to this' }).click()
  await dialog.getByLabel('Your change').waitFor()
  await api(n, 'PUT', '/v1/rules/tier/free?force=true', { limit: 140 })
  const sure = dialog.getByLabel('I have read this, and mean it')
  if (await sure.isVisible()) await sure.check()
  await dialog.getByRole('button', { name: 'Roll back' }).click()
  await dialog.getByText('ada changed the rules meanwhile').waitFor()
  await dialog.getByLabel('Their change').getByText('140/minute').waitFor()
  await sure.check()
  await dialog.getByRole('button', { name: 'Roll back' }).click()
  await page.getByRole('dialog', { name: 'Applied' }).waitFor()
  assert.match(await textOf(n), /free: 100\/minute/)
})

flow('a session that ends takes nothing with it', async (t) => {
  const { nodes: [n] } = await cluster(t)
  const page = await open(t, n, '/console/rules', { allowed: [/status of 401/] })
  await page.getByRole('button', { name: 'Change free' }).click()
  const tier = page.getByRole('dialog', { name: 'Change tier free' })
  await tier.getByLabel('Limit').fill('170/minute')
  await tier.getByLabel('Message').fill('half the work')
  await page.context().clearCookies()
  const login = page.getByRole('dialog', { name: 'Your session has ended' })
  await login.getByLabel('Token').fill(tokens.ada)
  await login.getByRole('button', { name: 'Log in' }).click()
  await until('the login is gone', async () => (await login.count()) === 0)
  assert.deepEqual([await tier.getByLabel('Limit').inputValue(), await tier.getByLabel('Message').inputValue()], ['170/minute', 'half the work'])
  await tier.getByRole('button', { name: 'Apply' }).click()
  await page.getByRole('dialog', { name: 'Applied' }).waitFor()
  assert.match(await textOf(n), /free: 170\/minute/)
})
