import { afterEach, expect, test, vi } from 'vitest'
import * as cli from './cli'

// The console itself runs in browsers, so Node's types aren't installed.
const node = 'node:child_process'
const { execFileSync } = (await import(node)) as { execFileSync: (file: string, args: string[], o: { encoding: 'utf8' }) => string }

// run has a shell parse a command line. It returns each argument, and then the standard input.
function run(line: string): string[] {
  const script = `weir() { for a in "$@"; do printf '%s\\0' "$a"; done; }\n${line.replace(' <<', ' && cat <<')}\n`
  return execFileSync('sh', ['-c', script], { encoding: 'utf8' }).split('\0')
}

const from = (origin: string) => vi.stubGlobal('location', { origin })
afterEach(() => vi.unstubAllGlobals())

test('what was typed reaches the command as it is', () => {
  const message = `it's $(rm -rf "x") \`y\` \\ !`
  expect(run(cli.rollback('42-abcdef12', { message, force: true }))).toEqual(['rules', 'rollback', '42-abcdef12', '-m', message, '--force', ''])
  expect(run(cli.putTier('pro plus', { limit: '500/minute', capacity: 20 }, {}))).toEqual(['rules', 'tier', 'pro plus', '--limit', '500/minute', '--burst', '20', ''])
  const yaml = "id: a # it's $HOME\nEOF\nlimit: 1/s\n"
  expect(run(cli.putRule('a', yaml, { message: 'x' }))).toEqual(['rules', 'put', 'a', '-', '-m', 'x', yaml])
  expect(run(cli.apply(42, {}))).toEqual(['rules', 'apply', 'rules.yaml', '--if-version', '42', ''])
})

test('a node at another address is named, in every command', () => {
  const lines = () => [
    cli.top(),
    cli.nodes(),
    cli.tail({ rule: 'search' }),
    cli.showRules(),
    cli.diff('1', '2'),
    cli.whatIf('a', '5/s'),
    cli.rollback('1'),
    cli.removeRule('a', {}),
    cli.putRule('a', 'limit: 1/s', {}).split('\n')[0]!,
    cli.apply(1, {}).split('\n')[1]!,
    cli.counters('show', '-', {}),
    cli.unoverride('-', 'a'),
    cli.listEntry('denylist', '-', false),
    cli.cooldowns(),
    cli.lift('5f0c4b1d9a7e3c2240d1e8b7a6f59312'),
  ]
  from('http://127.0.0.1:8082')
  for (const line of lines()) expect(line).not.toContain('--admin')
  from('http://10.0.0.1:8082')
  for (const line of lines()) expect(line).toContain(' --admin 10.0.0.1:8082')
  from('https://weir.internal')
  for (const line of lines()) expect(line).toContain(' --admin https://weir.internal')
})

test('what begins with - is no flag', () => {
  const o = { message: 'x' }
  expect(run(cli.listEntry('denylist', cli.arg('-test*'), true, o))).toEqual(['keys', 'block', '--remove', '-m', 'x', '--', '-test*', ''])
  expect(run(cli.removeRule('-a', o))).toEqual(['rules', 'remove', '-m', 'x', '--', '-a', ''])
  expect(run(cli.putRule('-a', 'limit: 1/s\n', o))).toEqual(['rules', 'put', '-m', 'x', '--', '-a', '-', 'limit: 1/s\n'])
  expect(run(cli.putTier('--pro', { limit: 5 }, {}))).toEqual(['rules', 'tier', '--limit', '5', '--', '--pro', ''])
  from('http://10.0.0.1:8082')
  expect(cli.whatIf('-a', '5/s')).toBe('weir rules whatif --limit 5/s --admin 10.0.0.1:8082 -- -a')
})

test('a command never has a key', () => {
  expect(cli.override(cli.who('1a2b3c4d', false), { rule: 'orders', limit: '200/minute', lasting: '1h' }, { message: "it's launch day; $HOME" })).toBe(
    `weir keys override --client 1a2b3c4d --rule orders --limit 200/minute --for 1h -m 'it'\\''s launch day; $HOME'`,
  )
  expect(cli.override(cli.who('1a2b3c4d', true), { rule: 'orders', limit: '200', burst: '50', lasting: 'good' }, { force: true })).toBe('weir keys override - --rule orders --limit 200 --burst 50 --for good --force')
  expect(cli.listEntry('denylist', '--client 1a2b3c4d', false)).toBe('weir keys block --client 1a2b3c4d')
  expect(cli.listEntry('allowlist', '-', true)).toBe('weir keys allow - --remove')
  const check = { key: 'sk_secret', method: 'POST', path: '/v1/a b', ip: '::1', attributes: { user: '$(rm -rf /)', 'header:X-Tenant': 'acme' } }
  expect(cli.counters('show', '-', check, true)).toBe(`weir keys show - --method POST --path '/v1/a b' --ip ::1 --user '$(rm -rf /)' --attr header:X-Tenant=acme --unverified`)
  expect(cli.counters('reset', '', { ip: '203.0.113.7' })).toBe('weir keys reset --ip 203.0.113.7')
  for (const yaml of ['limit: 1/s\noverride: {sk_secret: 5/s}', '{limit: 1/s, "override": {sk_secret: 5/s}}', 'override:\n  sk_secret: 5/s\n']) {
    const line = cli.putRule('orders', yaml, { force: true })
    expect(line).not.toContain('sk_secret')
    expect(run(line)).toEqual(['rules', 'put', 'orders', 'orders.yaml', '--force', ''])
  }
})
