import { Page } from '../../parts/page'
import { Segments } from '../../parts/field'
import { maskIn } from '../../client/known'
import { useQuery, useRoute } from '../../router'
import { Client } from './client'
import { Hot } from './hot'
import { Listed } from './listed'
import { Overrides } from './overrides'
import '../../client/client.css'
import './keys.css'

const parts = [
  ['hot', 'Hot clients'],
  ['deny', 'Blocked'],
  ['allow', 'Allowed'],
  ['overrides', 'Overrides'],
] as const
type Part = (typeof parts)[number][0]

// Keys is the view about clients: the busiest ones, a single client, and the lists of overrides, blocks and allowed
// clients.
export default function Keys() {
  const { rest, query } = useRoute()
  const [part, setPart] = useQuery<Part>('show', 'hot')
  const fingerprint = rest[0]
  if (fingerprint) return <Client key={fingerprint} fingerprint={fingerprint} as={maskIn(query)} />
  return (
    <Page title="Keys" lead="Who sends the most and who is refused the most, over all nodes; and what was done for single clients." actions={<Segments label="Show" hideLabel value={part} options={parts} onChange={setPart} />}>
      {part === 'deny' ? <Listed key="deny" list="denylist" /> : part === 'allow' ? <Listed key="allow" list="allowlist" /> : part === 'overrides' ? <Overrides /> : <Hot />}
    </Page>
  )
}
