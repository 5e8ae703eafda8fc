import { useState } from 'preact/hooks'
import * as api from '../../api'
import { asError } from '../../load'
import { Button } from '../../parts/button'
import { Field } from '../../parts/field'
import type { Session } from '../../wire'

// LoginForm posts the token once. The response sets a cookie that scripts can't read.
export function LoginForm({ onLogin }: { onLogin: (s: Session) => void }) {
  const [token, setToken] = useState('')
  const [error, setError] = useState('')
  const [busy, setBusy] = useState(false)

  const submit = async () => {
    if (!token.trim()) return setError('Paste a token first.')
    setBusy(true)
    setError('')
    try {
      onLogin(await api.login(token.trim()))
    } catch (e) {
      setError(asError(e).message)
      setBusy(false)
    }
  }
  return (
    <form
      class="stack"
      onSubmit={(e) => {
        e.preventDefault()
        void submit()
      }}
    >
      <Field
        label="Token"
        type="password"
        name="token"
        autocomplete="current-password"
        mono
        autoFocus
        value={token}
        onInput={setToken}
        error={error}
        hint="It is kept nowhere in the browser. You stay logged in for twelve hours, or until this node is restarted."
      />
      <Button submit kind="primary" busy={busy}>
        Log in
      </Button>
    </form>
  )
}
