import { useState } from 'preact/hooks'
import { TierDialog } from '../../client/raise'
import { Badge } from '../../parts/badge'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import type { Tier } from './rules-doc'

// Tiers lists the limits of tiers, for rules that have no limits of their own. A change of a tier affects all of those
// rules.
export function Tiers({ tiers, may, onDone }: { tiers: Tier[] | undefined; may: string; onDone: () => void }) {
  const [editing, edit] = useState<Tier>()
  if (tiers && !tiers.length) return null
  return (
    <>
      <Card title="Tiers" aside="Numbers for rules that have none of their own" class="tiers">
        <ul>
          {(tiers ?? [undefined, undefined]).map((t, i) => (
            <li key={t?.name ?? i} aria-busy={!t}>
              {t && (
                <>
                  <div>
                    <strong class="clip">{t.name}</strong> {t.first && <Badge title="Requests without a tier have this one.">default</Badge>}
                  </div>
                  <div class="mono num">
                    {t.limit}
                    {t.burst !== undefined && <small> burst {t.burst}</small>}
                  </div>
                  <Button small onClick={() => edit(t)} why={may || (t.simple ? '' : 'It has several limits: change it in the whole document.')} label={`Change ${t.name}`}>
                    Change
                  </Button>
                </>
              )}
            </li>
          ))}
        </ul>
      </Card>
      {editing && <TierDialog tier={editing.name} now={editing.limit} burst={String(editing.burst ?? '')} lead="Every rule that takes its numbers from this tier changes with it." onClose={() => edit(undefined)} onDone={onDone} />}
    </>
  )
}
