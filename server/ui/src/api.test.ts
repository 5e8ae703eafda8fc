import { afterEach, expect, test, vi } from 'vitest'
import * as api from './api'
import { setProof } from './session'

afterEach(() => vi.unstubAllGlobals())

const refused = () => new Response(JSON.stringify({ error: { code: 'UNAUTHORIZED', message: 'no session' } }), { status: 401 })

test('a request that an old session had sent is sent again by the new one, and nobody logs in twice', async () => {
  const asked = vi.fn(() => Promise.resolve(false))
  api.setUnauthorized(asked)
  setProof('old')
  const sent: string[] = []
  vi.stubGlobal('fetch', async (_: string, o: { headers: Record<string, string> }) => {
    sent.push(o.headers['X-Weir-Session']!)
    if (sent.length > 1) return new Response(JSON.stringify({ versions: [] }))
    setProof('new') // somebody logs in while the request is in flight
    return refused()
  })
  await api.versions({ limit: 1 })
  expect(sent).toEqual(['old', 'new'])
  expect(asked).not.toHaveBeenCalled()

  vi.stubGlobal('fetch', async () => refused())
  await expect(api.versions({ limit: 1 })).rejects.toThrow()
  expect(asked).toHaveBeenCalledOnce()
})
