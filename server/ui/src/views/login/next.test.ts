import { expect, test } from 'vitest'
import { next } from './next'

test('a login leads nowhere but into the console', () => {
  const go = (asked: string | null) => next(asked, 'http://weir.internal:8082')
  expect(go('/console/keys/1a2b3c4d?as=sk_…9f')).toBe('/console/keys/1a2b3c4d?as=sk_%E2%80%A69f')
  for (const bad of [null, '', '//evil.example/console/', 'https://evil.example/console/', '/console', '/console/../v1/session', '/console/..//evil.example', 'javascript:alert(1)', '\\\\evil.example']) {
    expect(go(bad)).toBe('/console/')
  }
})
