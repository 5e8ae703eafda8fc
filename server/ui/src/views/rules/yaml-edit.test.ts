import { describe, expect, test } from 'vitest'
import { isFault, list, placeOf, readYaml, scalar, set } from './yaml-edit'

const login = `# who logs in
id: login                   # five failures
match: {endpoint: "POST /login", api_key: absent}  # a form
by: [user]
count:
  status: [401, 403]   # wrong password
algorithm: sliding_window_log

limit: 5/15m # exact
# the end
`

describe('one field is changed and every other byte stays', () => {
  const cases: [string, string, string[], string | undefined, string][] = [
    ['a value', login, ['limit'], '6/15m', login.replace('5/15m', '6/15m')],
    ['a value in a flow map', login, ['match', 'endpoint'], '"POST /in"', login.replace('POST /login', 'POST /in')],
    ['a value in a block map', login, ['count', 'status'], '[4xx]', login.replace('[401, 403]', '[4xx]')],
    ['a new field is the last', login, ['strict'], 'true', login.replace('# the end', 'strict: true\n# the end')],
    ['a new one in a flow map', login, ['match', 'api_key_pattern'], '"sk_*"', login.replace('absent}', 'absent, api_key_pattern: "sk_*"}')],
    ['a new map', 'id: a\n', ['match', 'endpoint'], '/x', 'id: a\nmatch: {endpoint: /x}\n'],
    ['a field goes with its line', login, ['by'], undefined, login.replace('by: [user]\n', '')],
    ['a field of a flow map goes', login, ['match', 'api_key'], undefined, login.replace(', api_key: absent', '')],
    ['with the last of a map the map goes', login, ['count', 'status'], undefined, login.replace('count:\n  status: [401, 403]   # wrong password\n', '')],
    ['a block gives way to a line', 'id: a\nlimits:\n  - 1/s\n  - 2/m\nby: [ip]\n', ['limits'], '[3/s]', 'id: a\nlimits: [3/s]\nby: [ip]\n'],
    ['what is not there goes without a trace', login, ['layer'], undefined, login],
    ['nothing behind the name', 'id: a\nlimit:\nby: [ip]\n', ['limit'], '1/s', 'id: a\nlimit: 1/s\nby: [ip]\n'],
    ['no line end at the end', 'id: a', ['limit'], '1/s', 'id: a\nlimit: 1/s\n'],
    ['an empty text', '', ['limit'], '1/s', 'limit: 1/s\n'],
    ['only a comment', '# new\n', ['match', 'endpoint'], '/x', '# new\nmatch: {endpoint: /x}\n'],
    ['a rule in one line', '{id: a, limit: 1/s}', ['burst'], '5', '{id: a, limit: 1/s, burst: 5}'],
    ['a field of a rule in one line goes', '{id: a, limit: 1/s}', ['limit'], undefined, '{id: a}'],
    ['a quoted name', '"limit": 1/s\nid: a\n', ['limit'], '2/s', '"limit": 2/s\nid: a\n'],
    ['a value that has the same name in it', 'id: limit\nlimit: 1/s\n', ['limit'], '2/s', 'id: limit\nlimit: 2/s\n'],
    ['an empty map', 'id: a\nmatch: {}\n', ['match', 'endpoint'], '/x', 'id: a\nmatch: {endpoint: /x}\n'],
    ['a block map gets a field', 'match:\n    endpoint: /x   # it\nid: a\n', ['match', 'api_key'], 'absent', 'match:\n    endpoint: /x   # it\n    api_key: absent\nid: a\n'],
  ]
  test.each(cases)('%s', (_, text, path, source, want) => expect(set(text, path, source)).toBe(want))

  test('a layout that is hard still has the right fields, and its comments', () => {
    const out = set('{\n  id: a, # it\n  limit: 1/s\n}\n', ['limit'], undefined)
    const read = readYaml(out)
    expect(isFault(read) ? read : read.doc.toJS()).toEqual({ id: 'a' })
  })

  test('a text that cannot be read stays', () => expect(set('id: [a', ['limit'], '1/s')).toBe('id: [a'))
})

test('texts are quoted where they must be', () => {
  expect(['100/minute', 'api_key', 'POST /login', 'sk_*', 'true', 'header:X-Tenant', '-', ''].map(scalar)).toEqual([
    '100/minute',
    'api_key',
    '"POST /login"',
    '"sk_*"',
    '"true"',
    '"header:X-Tenant"',
    '"-"',
    '""',
  ])
  expect(list(['ip', 'path:1'])).toBe('[ip, "path:1"]')
})

test('a path leads to its place, or as far as it leads', () => {
  expect(placeOf(login, 'limit')).toEqual({ line: 9, column: 8 })
  expect(placeOf(login, 'match.endpoint')).toEqual({ line: 3, column: 19 })
  expect(placeOf(login, 'count.status[1]')).toEqual({ line: 6, column: 17 })
  expect(placeOf(login, 'count')).toEqual({ line: 5, column: 1 })
  expect(placeOf(login, 'match.nothing')).toEqual({ line: 3, column: 8 })
  expect(placeOf('override:\n  a.b: 1/s\n  a: 2/s\n', 'override.a.b')).toEqual({ line: 2, column: 8 })
  expect(placeOf('', 'limit')).toEqual({ line: 1, column: 1 })
})

test('what cannot be read is said with its place', () => {
  expect(readYaml('id: a\nlimit: [1\n')).toMatchObject({ line: 3, text: expect.stringContaining('is not valid YAML') })
  expect(readYaml('- id: a\n')).toMatchObject({ line: 1, text: expect.stringContaining('must be the fields of a rule') })
})
