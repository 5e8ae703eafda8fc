import * as api from '../../api'
import { Clients } from '../../client/clients'
import { usePoll } from '../../load'
import { Card } from '../../parts/card'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Loading } from '../../parts/loading'
import { to } from '../../router'

// Start is shown before there is a question. It lists the clients that are being refused, each with a link to the
// answer.
export function Start() {
  const top = usePoll((signal) => api.top({ by: 'refused', k: 20 }, signal), 2000, [])
  const refused = top.data?.clients.filter((c) => c.refused > 0) ?? []
  return (
    <Card title="Refused the most now" flush aside={<a href={to('keys', '', { by: 'refused' })}>All hot clients</a>}>
      {top.error && !top.data ? (
        <Failed error={top.error} retry={top.reload} />
      ) : !top.data ? (
        <Loading rows={5} />
      ) : (
        <Clients
          label="Clients that are refused the most"
          clients={refused}
          href={(c) => to('why', '', { rule: c.rule, client: c.fingerprint, as: c.client })}
          empty={
            <Empty title="Nobody has been refused in the last ten seconds">
              <p>Paste the key, the address or the refusal that you were sent, or type the request: the answer has every rule that was considered.</p>
            </Empty>
          }
        />
      )}
    </Card>
  )
}
