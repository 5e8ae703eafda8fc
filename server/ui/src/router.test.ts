import { expect, test } from 'vitest'
import { parse, to } from './router'

test('an address and what it names', () => {
  expect(to('keys', '1a2b3c4d', { as: 'sk_prod_…9f3c', by: undefined })).toBe('/console/keys/1a2b3c4d?as=sk_prod_%E2%80%A69f3c')
  expect(parse('/console/', '')).toMatchObject({ view: '', rest: [] })
  expect(parse('/console', '')).toMatchObject({ view: '', rest: [] })
  for (const id of ['login/ip', 'a b', '100%', 'ü']) {
    expect(parse(to('rules', id), '')).toMatchObject({ view: 'rules', rest: [id] })
  }
  expect(parse('/console/rules/100%', '').rest).toEqual(['100%'])
})
