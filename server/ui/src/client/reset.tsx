import { useState } from 'preact/hooks'
import * as api from '../api'
import { plural } from '../format'
import { asError } from '../load'
import { Button } from '../parts/button'
import { CliLine } from '../parts/cliline'
import { Dialog } from '../parts/dialog'
import { toast } from '../parts/toast'
import type { Check, Counter } from '../wire'
import { leftOf } from './limits'

// ResetDialog resets a request's counters. This can't be undone, so the dialog lists the counters first.
export function ResetDialog({ name, check, unverified, counters, line, onClose, onDone }: { name: string; check: Check; unverified?: boolean; counters: Counter[]; line: string; onClose: () => void; onDone: () => void }) {
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState('')
  const reset = async () => {
    setBusy(true)
    setError('')
    try {
      const { reset } = await api.resetCounters(check, { unverified })
      toast({ text: `${plural(reset, 'counter')} of ${name} ${reset === 1 ? 'is' : 'are'} full again.`, tone: 'ok' })
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
      title={`Reset the counters of ${name}`}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" autoFocus busy={busy} onClick={() => void reset()} why={counters.length ? '' : 'No limit applies to this request.'}>
            Reset the counters
          </Button>
        </>
      }
    >
      <p class="muted">
        They are full again, as if nothing had been asked. This can't be undone. Other nodes may refuse for up to a second more, and spend tokens that they hold for up to 10 s.
      </p>
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">Counter</th>
            <th scope="col">Limit</th>
            <th scope="col" class="number">
              Now
            </th>
          </tr>
        </thead>
        <tbody>
          {counters.map((c) => (
            <tr key={c.policy}>
              <td class="mono">{c.policy}</td>
              <td class="num">{c.limit}</td>
              <td class="number num">{c.degraded ? 'unknown' : `${leftOf(c).n} ${leftOf(c).of}`}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {error && (
        <p class="field-error" role="alert">
          {error}
        </p>
      )}
      <CliLine>{line}</CliLine>
    </Dialog>
  )
}
