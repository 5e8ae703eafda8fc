import { createParser, type EventSourceMessage } from 'eventsource-parser'

// Server-Sent Events over fetch. EventSource would hide the status and the message of an error response, which the user
// needs to see.
export async function readEvents(body: ReadableStream<Uint8Array>, onEvent: (e: EventSourceMessage) => void): Promise<void> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  const parser = createParser({ onEvent })
  try {
    for (;;) {
      const { value, done } = await reader.read()
      if (done) return
      parser.feed(decoder.decode(value, { stream: true }))
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}
