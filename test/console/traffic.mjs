// Traffic by many kinds of clients, so that the views have something to show.
import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { keys } from './harness.mjs'

async function send(node, checks) {
  const answer = await fetch(`${node.http}/v1/checks`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ checks }) })
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`)
  await answer.arrayBuffer()
}

// key returns a realistic key, always the same one for a number.
const key = (i) => `sk_live_${'ABCDEFGHKLMNPQRSTUVWXYZ'[i % 23]}${createHash('sha256').update(`client ${i}`).digest('hex').slice(0, 20)}`
const paths = ['/v1/orders', '/v1/orders/17', '/v1/users', '/v1/items', '/v1/carts/3', '/v1/invoices']

// second returns a second of traffic: many clients with a few requests each, some with many, one that is refused, and
// one that guesses passwords.
function second(now) {
  const swing = 1 + 0.5 * Math.sin(now / 9) // varies the load, so that lines aren't flat
  const checks = []
  for (let i = 0; i < 400 * swing; i++) {
    const rank = Math.floor(300 * Math.random() ** 4)
    checks.push({ key: key(rank), method: 'GET', path: paths[(rank + i) % paths.length], ip: `203.0.113.${rank % 250}` })
  }
  for (let i = 0; i < 12; i++) checks.push({ key: keys.busy, method: 'GET', path: '/v1/orders', ip: '198.51.100.7' })
  for (let i = 0; i < 4; i++) checks.push({ key: keys.refused, method: 'GET', path: '/v1/search', ip: '198.51.100.9' })
  checks.push({ method: 'POST', path: '/login', ip: '192.0.2.66' })
  return checks
}

// keepBusy sends traffic to all nodes until the signal is aborted.
export async function keepBusy(nodes, signal) {
  for (let n = 0; !signal.aborted; n++) {
    const checks = second(n)
    const share = (i) => checks.filter((_, j) => j % nodes.length === i)
    await Promise.all(nodes.map((node, i) => send(node, share(i)).catch(() => {}))) // a node may have been stopped
    await sleep(1000, undefined, { signal }).catch(() => {})
  }
}

// manyKeys sends one request for each of many clients to a node.
export async function manyKeys(node, count) {
  for (let i = 0; i < count; i += 1000) {
    await send(node, Array.from({ length: 1000 }, (_, j) => ({ key: `sk_seen_${i + j}`, method: 'GET', path: '/v1/orders' })))
  }
}
