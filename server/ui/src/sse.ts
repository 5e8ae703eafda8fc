import { createParser, type EventSourceMessage } from 'eventsource-parser'

// Server-Sent Events over fetch. EventSource hides the status and the message of an answer that is
// an error, and those are what a person has to read.
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
