import type { Loaded } from '../load'
import { Time } from '../parts/time'
import { to } from '../router'
import type { RuleText } from '../wire'

// Changed shows who last changed a rule.
export function Changed({ loaded }: { loaded: Loaded<RuleText> }) {
  const r = loaded.data
  if (loaded.error && !r) return <span class="muted">Who changed it last can't be told{loaded.error.status === 404 ? '.' : `: ${loaded.error.message}`}</span>
  if (!r) return <span class="muted">Looking who changed it last…</span>
  if (!r.changed) return <span class="muted">Who changed it last isn't known: {r.reason ?? `it is the same in ${r.searched} versions`}.</span>
  const { version, author, time, message } = r.changed
  return (
    <span>
      Last changed by <b>{author || 'somebody without a name'}</b> <Time at={time} /> in <a href={to('history', '', { to: String(version) })}>version {version}</a>
      {message ? (
        <>
          : <q>{message}</q>
        </>
      ) : (
        '.'
      )}
    </span>
  )
}
