import type { ApiError } from '../../api'
import { Coverage } from '../../client/coverage'
import { minutes } from '../../client/hour'
import { count, short } from '../../format'
import { Card } from '../../parts/card'
import { Chart, type Line } from '../../parts/chart'
import { Failed } from '../../parts/failed'
import { Stat } from '../../parts/stat'
import { Time } from '../../parts/time'
import type { RuleUsage } from '../../wire'

// LastHour shows a rule's last hour across all nodes.
export function LastHour({ usage, error, retry }: { usage: RuleUsage | undefined; error: ApiError | undefined; retry: () => void }) {
  if (!usage && error) return <Card title="The last hour">{<Failed error={error} retry={retry} />}</Card>
  const lines: Line[] = [
    { label: 'Requests', values: minutes(usage?.series.requests), token: '--accent', fill: true },
    { label: 'Refused', values: minutes(usage?.series.refused), token: '--bad' },
  ]
  return (
    <Card title="The last hour" aside={usage && <Coverage of={usage} share={usage.coverage} />} class="last-hour">
      <dl class="stats">
        <Stat label="Requests" hint={usage && <Last at={usage.last_hit} />}>
          {usage ? short(usage.requests) : '–'}
        </Stat>
        <Stat label="Refused" hint={usage && <Last at={usage.last_refusal} />}>
          <span class={usage?.refused ? 'text-bad' : ''}>{usage ? short(usage.refused) : '–'}</span>
        </Stat>
        <Stat label="Keys seen" hint={usage ? `${count(usage.above_50)} at 50% or more` : ''}>
          {usage ? short(usage.keys) : '–'}
        </Stat>
        <Stat label="Keys at 80%" hint={usage ? `${count(usage.above_100)} at 100%` : ''}>
          <span class={usage?.above_80 ? 'text-warn' : ''}>{usage ? short(usage.above_80) : '–'}</span>
        </Stat>
      </dl>
      <Chart label="Requests and refusals a minute" end={usage ? Date.parse(usage.at) / 1000 : 0} step={60} lines={lines} height={120} />
    </Card>
  )
}

const Last = ({ at }: { at: string | null }) => (at ? <>last <Time at={at} /></> : <>none was seen</>)
