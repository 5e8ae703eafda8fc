import { after } from 'node:test'
import { check, close, cluster, flow, open } from './harness.mjs'

after(close)

flow('a node that was killed, and a store that is lost, are shown', async (t) => {
  const c = await cluster(t, { nodes: 3 })
  const [n, , third] = c.nodes
  const page = await open(t, n, '/console/', { allowed: [/status of 503/] })
  await page.getByText('All is well').waitFor()
  await page.getByText('all 3 nodes are heard and have the same rules').waitFor()
  third.kill()
  await page.getByRole('table').getByText('silent').waitFor()
  await page.getByText('Not every node is heard').first().waitFor()
  await page.getByRole('table').getByText('gone').waitFor()

  c.redis.kill('SIGKILL')
  await c.redis.exited
  await check(n, 3, { key: 'sk_test', method: 'GET', path: '/v1/orders' }) // a check notices the lost store at once
  await page.getByText('The store is lost').first().waitFor()
  // The page says what each rule does without the store: login refuses requests, and the others allow them.
  await page.getByText('answers 503').first().waitFor()
})
