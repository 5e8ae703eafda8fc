import * as api from '../api'
import { plural } from '../format'
import { usePoll } from '../load'
import { Badge } from '../parts/badge'
import { useSecond } from '../parts/time'
import { useState } from 'preact/hooks'

// InForce shows which nodes have applied a version of the rules, until all of them have.
export function InForce({ version }: { version: number }) {
  const [began] = useState(Date.now)
  const [done, setDone] = useState(false)
  const now = useSecond()
  const { data, error } = usePoll(
    async (signal) => {
      const answer = await api.nodes(signal)
      setDone(answer.nodes.every((n) => n.rules_version >= version))
      return answer
    },
    done ? 0 : 400,
    [version, done],
  )
  if (!data) return <p class="in-force">{error ? `Whether all nodes have it isn't known: ${error.message}` : `Version ${version} is written.`}</p>
  const have = data.nodes.filter((n) => n.rules_version >= version)
  const all = have.length === data.nodes.length
  return (
    <div class="in-force">
      <p role="status">
        <Badge tone={all ? 'ok' : 'warn'}>{`In force on ${have.length} of ${plural(data.nodes.length, 'node')}`}</Badge> Version {version}
      </p>
      <ul>
        {data.nodes.map((n) => (
          <li key={n.name}>
            <span class="mono">{n.name}</span>
            {n.self && <small>this node</small>}
            <small class="num">version {n.rules_version}</small>
            {n.rules_version < version && n.seen_ms_ago > 5000 && <small class="text-warn">silent for {Math.round(n.seen_ms_ago / 1000)} s</small>}
          </li>
        ))}
      </ul>
      {data.stale && <p class="text-warn">This node hasn't heard of the others lately. They follow as soon as they reach the store.</p>}
      {!all && now - began > 10_000 && <p class="muted">The others take it up as soon as they reach the store again. Now shows how each node is.</p>}
    </div>
  )
}
