import { useState } from 'preact/hooks'
import type { ApiError } from '../api'
import { asError } from '../load'
import { Button } from '../parts/button'
import { Empty } from '../parts/empty'
import { Failed } from '../parts/failed'
import { Field } from '../parts/field'
import type { ClientInfo } from '../wire'
import { openPasted, readPaste } from './known'

// Forgotten is shown if a link names a client that no node remembers, so the user has to enter the key. Other errors
// are shown as they are.
export function Forgotten({ error, as, retry, onOpen }: { error: ApiError; as: string; retry: () => void; onOpen: (info: ClientInfo) => void }) {
  const [key, setKey] = useState('')
  const [wrong, setWrong] = useState('')
  if (![404, 409].includes(error.status)) return <Failed error={error} retry={retry} />
  const open = async () => {
    const pasted = readPaste(key)
    if (!pasted || 'rule' in pasted) return setWrong('Paste the key or the address of the client.')
    try {
      onOpen(await openPasted(pasted))
    } catch (e) {
      setWrong(asError(e).message)
    }
  }
  return (
    <Empty title={error.status === 409 ? `Several clients are known as ${as}` : `No node remembers ${as} any more`}>
      <p>
        {error.status === 409 ? 'They have the same fingerprint, and only the key tells them apart.' : 'Nodes remember the busiest clients of the last hour.'} Find the key in your own logs by how it begins and ends.
      </p>
      <form
        class="paste"
        onSubmit={(e) => {
          e.preventDefault()
          void open()
        }}
      >
        <Field label="Key" mono autoFocus value={key} onInput={setKey} error={wrong} hint="It is posted, and stays out of the address." />
        <Button submit kind="primary">
          Open
        </Button>
      </form>
    </Empty>
  )
}
