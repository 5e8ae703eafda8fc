import { expect, test } from 'vitest'
import type { Problem } from '../../wire'
import { byField, inDocument, inRule } from './problems'

const text = 'id: login\nmatch:\n  endpoint: "POST /login"\nlimit: 5/15m\n'
const problem = (p: Partial<Problem>): Problem => ({ file: 'rules', line: 40, column: 9, text: 'is wrong', caret: 0, ...p })

test('a problem of the rule that was sent has its line', () => {
  const { here } = inRule([problem({ file: 'rule', line: 4, column: 8, path: 'limit', hint: 'did you mean 5/15m?' })], 'problem', text, 'login')
  expect(here).toEqual([{ kind: 'problem', line: 4, column: 8, field: 'limit', text: 'limit: is wrong. Did you mean 5/15m?' }])
})

test('one of the document is found by its path', () => {
  const { here, elsewhere } = inRule(
    [
      problem({ rule: 'login', path: 'rules[7].match.endpoint' }),
      problem({ rule: 'login', path: 'rules[7]' }),
      problem({ rule: 'other', path: 'rules[8].limit' }),
      problem({ path: 'blacklist' }),
    ],
    'warning',
    text,
    'LOGIN',
  )
  expect(here).toEqual([
    { kind: 'warning', line: 3, column: 13, field: 'endpoint', text: 'match.endpoint: is wrong' },
    { kind: 'warning', line: 1, column: 1, field: undefined, text: 'is wrong' },
  ])
  expect(elsewhere.map((p) => p.path)).toEqual(['rules[8].limit', 'blacklist'])
})

test('a field shows a problem before a warning', () => {
  const marks = [
    ...inRule([problem({ rule: 'login', path: 'rules[0].limit' })], 'warning', text, 'login').here,
    ...inRule([problem({ rule: 'login', path: 'rules[0].limit', text: 'is worse' })], 'problem', text, 'login').here,
  ]
  expect(byField(marks).limit?.text).toBe('limit: is worse')
})

test('the whole document has lines of its own', () => {
  expect(inDocument([problem({ path: 'rules[2].limit' })], 'problem')).toEqual([{ kind: 'problem', line: 40, column: 9, text: 'rules[2].limit: is wrong' }])
})
