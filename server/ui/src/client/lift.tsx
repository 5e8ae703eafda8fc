import { useState } from 'preact/hooks'
import * as api from '../api'
import * as cli from '../cli'
import { asError, useLoad } from '../load'
import { Button } from '../parts/button'
import { CliLine } from '../parts/cliline'
import { Dialog } from '../parts/dialog'
import { Failed } from '../parts/failed'
import { Loading } from '../parts/loading'
import { Time } from '../parts/time'
import { toast } from '../parts/toast'

// LiftDialog ends a client's cooldown early. Only rules that count by a single attribute name the clients that are in a
// cooldown.
export function LiftDialog({ name, fingerprint, rule, onClose, onDone }: { name: string; fingerprint: string; rule: string; onClose: () => void; onDone: () => void }) {
  const all = useLoad((signal) => api.cooldowns(signal), [])
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState('')
  const found = all.data?.cooldowns.find((c) => !c.shadow && c.rule === rule && c.fingerprint === fingerprint)
  const lift = async () => {
    setBusy(true)
    setError('')
    try {
      await api.lift(found!.id)
      toast({ text: `${name} may come again.`, tone: 'ok' })
      onDone()
      onClose()
    } catch (e) {
      setError(asError(e).message)
      setBusy(false)
    }
  }
  return (
    <Dialog
      open
      onClose={onClose}
      title={`Lift the cooldown of ${name}`}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" busy={busy} onClick={() => void lift()} why={found ? '' : 'It isn’t known yet which cooldown it is.'}>
            Lift the cooldown
          </Button>
        </>
      }
    >
      {all.error ? (
        <Failed error={all.error} retry={all.reload} />
      ) : !all.data ? (
        <Loading rows={2} />
      ) : found ? (
        <p>
          <b class="mono">{rule}</b> keeps it out{found.n > 1 && `, ${found.n} times in a row by now`}. That ends <Time at={found.ends} />. Lifted, it may come again, on all nodes within two seconds, and is forgiven: the next cooldown is a first one.
        </p>
      ) : (
        <p>
          No cooldown of <b class="mono">{rule}</b> has this client's fingerprint: it has ended, or the rule counts by something else. The command lists them all with their ids, and <code>weir keys lift ID</code> ends one.
        </p>
      )}
      {error && (
        <p class="field-error" role="alert">
          {error}
        </p>
      )}
      <CliLine>{found ? cli.lift(found.id) : cli.cooldowns()}</CliLine>
    </Dialog>
  )
}
