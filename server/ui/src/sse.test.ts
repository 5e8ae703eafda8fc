import { expect, test } from 'vitest'
import { readEvents } from './sse'

async function read(...chunks: Uint8Array[]) {
  const body = new ReadableStream<Uint8Array>({
    start(c) {
      chunks.forEach((x) => c.enqueue(x))
      c.close()
    },
  })
  const out: { event?: string | undefined; data: string }[] = []
  await readEvents(body, (e) => out.push(e))
  return out
}

test('events arrive whole however the bytes are cut', async () => {
  const bytes = new TextEncoder().encode(': hello\n\nevent: decision\r\ndata: {"client":"…9f"}\r\n\r\ndata: a\ndata: b\n\nevent: pulse\ndata: cut off')
  const whole = [
    { event: 'decision', data: '{"client":"…9f"}' },
    { data: 'a\nb' },
  ]
  for (let i = 0; i <= bytes.length; i++) expect(await read(bytes.slice(0, i), bytes.slice(i))).toEqual(whole)
})
