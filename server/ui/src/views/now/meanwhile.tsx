import { count, plural } from '../../format'
import { Badge, type Tone } from '../../parts/badge'
import { Card } from '../../parts/card'
import { to } from '../../router'
import type { Now } from '../../wire'
import { modes } from './words'

const tones: Record<string, Tone> = { refuse: 'bad', local: 'warn', allow: 'plain' }
const shown = 12

// Meanwhile shows what each rule does while the store can't be reached, whether or not that is the case now.
export function Meanwhile({ now }: { now: Now }) {
  const lost = now.store.status !== 'up'
  const groups = modes(now)
  return (
    <Card title={lost ? 'What the rules do meanwhile' : 'If the store were lost'} aside={lost ? <span class="text-bad">in effect now</span> : 'by on_store_failure of each rule'} class={lost ? 'lost' : ''}>
      {groups.length ? (
        <dl class="modes">
          {groups.map((g) => (
            <div key={`${g.mode} ${g.text}`}>
              <dt>
                <Badge tone={tones[g.mode]}>{g.mode}</Badge> {plural(g.rules, 'rule')}
                {g.rules > 1 && ', each'} <span class="muted">{g.text}</span>
              </dt>
              <dd>
                {g.names.slice(0, shown).map((r) => (
                  <a key={r} href={to('rules', r)}>
                    {r}
                  </a>
                ))}
                {g.rules > shown && <a href={to('rules')}>{g.names.length ? `and ${count(g.rules - Math.min(shown, g.names.length))} more` : 'See the rules'}</a>}
              </dd>
            </div>
          ))}
        </dl>
      ) : (
        <p class="muted">{now.store.url === 'memory' ? 'The counters are in this process, so no rule ever has to decide without them.' : 'There are no rules, so nothing is limited, with the store or without.'}</p>
      )}
    </Card>
  )
}
